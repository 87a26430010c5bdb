"""`paceline explain`: what happened to a request and why, in sentences."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from paceline.cli.command import WrongOption
from paceline.cli.options import KeyOption, UrlOption
from paceline.cli.replay import REGULAR, UNREADABLE, ending, status
from paceline.cli.request_lives import RequestLives
from paceline.sched.replay.records import RecordingError
from paceline.sched.replay.replayer import Replay

DEFAULT_URL = "http://127.0.0.1:8000"


@dataclass(frozen=True, slots=True)
class ExplainOptions:
    """The request, and the server or the recording that it is in."""

    request_id: Annotated[
        str | None,
        typer.Argument(
            metavar="REQUEST_ID",
            help="As in the response's id or X-Request-Id; with --recording it may be left out.",
        ),
    ] = None
    url: UrlOption = None
    recording: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A file that --record wrote, instead of a server. Without REQUEST_ID, list its "
            "requests.",
        ),
    ] = None
    api_key: KeyOption = None

    def __post_init__(self) -> None:
        if self.url and self.recording:
            raise WrongOption("--url and --recording exclude each other")
        if self.request_id is None and self.recording is None:
            raise WrongOption("name a request, or a --recording whose requests are listed")


def run(options: ExplainOptions) -> int:
    """Describe what a request waited for, and why.

    A server remembers open requests and the last finished ones (--journal-requests). Without
    --url and --recording, the command asks the server on port 8000 of this machine. A recording
    has every request of the run; --recording FILE alone lists them. The exit status describes the
    file then, as that of `paceline replay` does.
    """
    if options.recording is not None:
        return from_recording(options.recording, options.request_id)
    from paceline.cli.http_client import fetched

    assert options.request_id is not None
    path = f"/requests/{quote(options.request_id)}/explain"
    print(fetched(options.url or DEFAULT_URL, path, options.api_key))
    return 0


def from_recording(path: Path, request_id: str | None) -> int:
    """Replay as much as the file has, and print what it says about one request or about all."""
    try:
        replay = Replay(path)
        lives = RequestLives(replay, request_id)
        for plan in replay.plans():
            lives.see(plan)
    except (RecordingError, OSError) as error:
        complain(str(error))
        return UNREADABLE
    if replay.divergence is not None:
        complain(f"{path}: the replay diverged, {replay.divergence}")
    if replay.reader.ending not in REGULAR:
        complain(f"{path}: {ending(replay)}")
    if request_id is None:
        print(*lives.listing(), sep="\n")
    else:
        print(lives.explanation(request_id))
    return status(replay)


def complain(what: str) -> None:
    print(f"paceline explain: {what}", file=sys.stderr)
