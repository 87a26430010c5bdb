"""`paceline explain`: what happened to a request and why, in sentences."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from paceline.cli.command import WrongOption
from paceline.cli.commands.replay import (
    AloneFlag,
    complain_of_cuts,
    replay_of,
    status,
    unreadable,
)
from paceline.cli.options import KeyOption, UrlOption
from paceline.core.errors import RequestError
from paceline.sched.replay.records import RecordingError
from paceline.viewer.request_lives import RequestLives

DEFAULT_URL = "http://127.0.0.1:8000"


@dataclass(frozen=True, slots=True)
class ExplainOptions:
    """A recording and one of its requests, or a request of a server.

    Attributes:
        subject (FILE_OR_ID): A file that --record wrote; or the id of a request of a server, from
            the response's id or X-Request-Id.
        request (ID): A request in FILE. Without it, list the requests.
    """

    subject: Annotated[str, typer.Argument()]
    request: str | None = None
    alone: AloneFlag = False
    url: UrlOption = None
    api_key: KeyOption = None

    def __post_init__(self) -> None:
        if self.url is not None and (self.request is not None or self.alone):
            raise WrongOption("--url names a server; --request and --alone go with a file")

    @property
    def is_file(self) -> bool:
        """Is the subject a file? A request of a server may have the name of one: see --url."""
        if self.url is not None:
            return False
        return self.request is not None or self.alone or Path(self.subject).exists()


def run(options: ExplainOptions) -> int:
    """Describe what a request waited for, and why.

    `paceline explain FILE` lists the requests in a recording; with --request it explains one of
    them. The exit status then describes the file, as that of `paceline replay` does.

    `paceline explain ID` asks a server, by default the one on port 8000 of this machine. A server
    remembers open requests and the last finished ones (--journal-requests).
    """
    if options.is_file:
        return from_recording(Path(options.subject), options.request, options.alone)
    from paceline.cli.http_client import ServerError, fetched

    path = f"/requests/{quote(options.subject)}/explain"
    try:
        print(fetched(options.url or DEFAULT_URL, path, options.api_key))
    except ServerError as error:
        if options.url is not None:
            raise
        raise ServerError(f"no file {options.subject!r} exists, and {error}") from None
    return 0


def from_recording(path: Path, request_id: str | None, alone: bool) -> int:
    """Replay the recording, and print what it says about one request or about all."""
    try:
        replay = replay_of(path, alone, "explain")
        lives = RequestLives(replay, request_id)
        for plan in replay.plans():
            lives.see(plan)
    except (RecordingError, OSError) as error:
        return unreadable("explain", error)
    complain_of_cuts("explain", path, replay)
    if request_id is None:
        print(*lives.listing(), sep="\n")
    else:
        try:
            print(lives.explanation(request_id))
        except RequestError as error:
            return unreadable("explain", error)
    return status(replay)
