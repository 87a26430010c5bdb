"""`paceline explain`: the life of a request, in sentences."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from paceline.cli.command import WrongOption
from paceline.cli.options import KeyOption, UrlOption
from paceline.cli.replay import UNREADABLE, UNTOUCHED, ending, status
from paceline.sched.replay.records import RecordingError
from paceline.sched.replay.replayer import Replay

DEFAULT_URL = "http://127.0.0.1:8000"


@dataclass(frozen=True, slots=True)
class Options:
    """Which request, and who knows of it."""

    request_id: Annotated[
        str,
        typer.Argument(metavar="REQUEST_ID", help="As in the response's id or X-Request-Id."),
    ]
    url: UrlOption = None
    recording: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A recorded run instead of a server."),
    ] = None
    api_key: KeyOption = None

    def __post_init__(self) -> None:
        if self.url and self.recording:
            raise WrongOption("--url and --recording exclude each other")


def run(options: Options) -> int:
    """Describe what a request waited for, and why.

    A server remembers open requests and the last finished ones (--journal-requests). Without
    --url and --recording, the command asks the server on port 8000 of this machine. With
    --recording, the exit status describes the file, as that of `paceline replay` does.
    """
    if options.recording is not None:
        return from_recording(options.recording, options.request_id)
    from paceline.cli.http_client import fetched

    path = f"/requests/{quote(options.request_id)}/explain"
    print(fetched(options.url or DEFAULT_URL, path, options.api_key))
    return 0


def from_recording(path: Path, request_id: str) -> int:
    """As it stood at the end of the recorded run, or as far as that could be made again."""
    try:
        replay = Replay(path)
        replay.run()
    except (RecordingError, OSError) as error:
        complain(str(error))
        return UNREADABLE
    if replay.divergence is not None:
        complain(f"{path}: the replay diverged, {replay.divergence}")
    if replay.reader.ending not in UNTOUCHED:
        complain(f"{path}: {ending(replay)}")
    print(replay.scheduler.explain(request_id))
    return status(replay)


def complain(what: str) -> None:
    print(f"paceline explain: {what}", file=sys.stderr)
