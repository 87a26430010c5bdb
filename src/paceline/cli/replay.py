"""The command `paceline replay`: make a recorded run again and check that it plans the same."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli.request_lives import RequestLives
from paceline.core.errors import RequestError
from paceline.sched.explain.sentences import plural
from paceline.sched.replay.reader import RecordingEnd
from paceline.sched.replay.records import RecordingError
from paceline.sched.replay.replayer import Replay, ReplaySummary

IDENTICAL, DIVERGED, UNREADABLE = 0, 1, 2
REGULAR = (
    RecordingEnd.CLOSED,
    RecordingEnd.CONTINUED,
    RecordingEnd.UNREAD,
)  # nothing is missing from the file


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """What to replay, and what to print."""

    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file that --record wrote.")]
    explain: Annotated[
        str | None, typer.Option(metavar="ID", help="Also explain this request.")
    ] = None
    until: Annotated[
        int | None, typer.Option(metavar="STEP", min=1, help="Stop after planning this step.")
    ] = None
    json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print each plan as a line of JSON; all else goes to standard error."
        ),
    ] = False


def run(options: ReplayOptions) -> int:
    """Make the calls of a recording again and check that it plans the same.

    Exit status: 0 if all plans are identical, 1 if one differs, 2 if the file cannot be read.
    """
    try:
        replay = Replay(options.file)
        lives = RequestLives(replay, options.explain or "")
        for plan in replay.plans(options.until):
            lives.see(plan)
            if options.json:
                print(json.dumps(plan.to_dict()))
    except BrokenPipeError:  # the reader of the plans has gone
        raise
    except (RecordingError, OSError) as error:
        return complain(error)
    out = sys.stderr if options.json else sys.stdout
    print(*report(replay, options.until), sep="\n", file=out)
    if options.explain is not None:
        try:
            print(lives.explanation(options.explain), file=out)
        except RequestError as error:
            return complain(error)
    return status(replay)


def status(replay: Replay) -> int:
    if replay.divergence is not None:
        return DIVERGED
    return UNREADABLE if replay.reader.ending is RecordingEnd.DAMAGED else IDENTICAL


def complain(error: Exception) -> int:
    print(f"paceline replay: {error}", file=sys.stderr)
    return UNREADABLE


def report(replay: Replay, until: int | None) -> list[str]:
    """The file, what was replayed, and whether it was identical, a line each."""
    reader, summary = replay.reader, replay.summary
    made_by = reader.preamble.made_by
    lines = [f"file      {reader.path}, {reader.size_bytes:,} bytes, made by paceline {made_by}"]
    if replay.steps_before:
        lines.append(f"begins    after step {replay.steps_before:,}, where an older file ends")
    lines.append(f"replayed  {counted(summary)}")
    if reader.ending not in (RecordingEnd.CLOSED, RecordingEnd.UNREAD):
        lines.append(f"ends      {ending(replay)}")
    if until is not None and replay.scheduler.stats.steps < until and replay.divergence is None:
        lines.append(f"ends      before step {until:,}")
    return [*lines, verdict(replay, summary)]


def ending(replay: Replay) -> str:
    """How the file ends, and how much of it was not read."""
    reader = replay.reader
    unread = reader.size_bytes - reader.read_bytes
    return reader.ending.value + (f" ({unread:,} bytes were not read)" if unread else "")


def counted(summary: ReplaySummary) -> str:
    found = [
        plural(summary.steps, "step"),
        plural(summary.requests, "request"),
        plural(summary.tokens, "token"),
        plural(summary.preemptions, "preemption"),
    ]
    if summary.swapped_out_blocks:
        found.append(f"{plural(summary.swapped_out_blocks, 'block')} swapped out")
    if summary.forks:
        found.append(plural(summary.forks, "fork"))
    if summary.refused:
        found.append(f"{plural(summary.refused, 'call')} refused")
    return ", ".join(found)


def verdict(replay: Replay, summary: ReplaySummary) -> str:
    if replay.divergence is not None:
        return f"diverged  {replay.divergence}"
    if unproven := summary.steps - summary.verified:
        return f"verified  {summary.verified:,} plans identical, {unproven:,} without a digest"
    return f"verified  all {summary.verified:,} plans identical"
