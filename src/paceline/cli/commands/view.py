"""`paceline view`: a recording in the live page."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli.commands.replay import AloneFlag, complain_of_cuts, replay_of, unreadable
from paceline.sched.replay.records import RecordingError

HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class ViewOptions:
    """The recording, and where to show it.

    Attributes:
        file (FILE): A file that --record wrote.
        port: Port to listen on; 0: any free port.
    """

    file: Annotated[Path, typer.Argument()]
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8001
    alone: AloneFlag = False


def run(options: ViewOptions) -> int:
    """Show a recording in the live page.

    It replays FILE through the scheduler, serves the page of `paceline serve` on this machine, and
    prints its address. The page goes back over the whole recording. Ctrl-C ends it. Exit status: 2
    if the file cannot be read.
    """
    from paceline.server.listen import check_port
    from paceline.viewer.page import RecordedFrames, serve
    from paceline.viewer.replayed import ReplayedRun

    if options.port:
        check_port(HOST, options.port)
    try:
        replay = replay_of(options.file, options.alone, "view")
        source = RecordedFrames(ReplayedRun(replay), options.file.name)
    except (RecordingError, OSError) as error:
        return unreadable("view", error)
    complain_of_cuts("view", options.file, replay)
    serve(source, HOST, options.port)
    return 0
