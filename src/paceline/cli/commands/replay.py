"""`paceline replay`: run a recording again and check that every plan is the same."""

import json
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from paceline.cli.command import WrongOption, os_problem
from paceline.cli.setting_flags import LoadSettings
from paceline.core.errors import RequestError
from paceline.core.plan import Outputs, Plan
from paceline.engine.loop.ports import NOT_OBSERVED, StepObserver
from paceline.engine.trace import trace_file
from paceline.engine.trace.step_trace import RecordedTrace
from paceline.engine.trace.trace_file import TraceFile
from paceline.sched.explain.sentences import plural
from paceline.sched.replay.reader import (
    CutBeginning,
    RecordingEnd,
    files_of_run,
    older_files_of_run,
)
from paceline.sched.replay.records import RecordingError
from paceline.sched.replay.replayer import Replay, ReplaySummary
from paceline.viewer.request_lives import RequestLives

IDENTICAL, DIVERGED, UNREADABLE = 0, 1, 2
COMPLETE = (RecordingEnd.CLOSED, RecordingEnd.CONTINUED, RecordingEnd.UNREAD)
AloneFlag = Annotated[
    bool,
    typer.Option("--alone", help="Read FILE only, and not the older files of the same run."),
]


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """The recording, and what to print.

    Attributes:
        file (FILE): A file that --record wrote.
        explain (ID): Also explain this request.
        until (STEP): Stop after planning this step.
        trace (OUT): Write a timeline to this file, which Perfetto opens.
        json: Print each plan as a line of JSON; everything else goes to standard error.
        model (NAME): Also compute every step with this model, up to the first token that is not the
            recorded one.
    """

    file: Annotated[Path, typer.Argument()]
    explain: str | None = None
    until: Annotated[int | None, typer.Option(min=1)] = None
    alone: AloneFlag = False
    trace: Path | None = None
    json: bool = False
    model: Annotated[str, typer.Option(show_default=False)] = ""
    settings: LoadSettings = field(default_factory=LoadSettings)

    def __post_init__(self) -> None:
        if self.settings and not self.model:
            name = next(iter(self.settings)).replace("_", "-")
            raise WrongOption(f"--{name} is for a replay with --model")


def run(options: ReplayOptions) -> int:
    """Run a recording again and check that every plan is the same.

    If FILE continues older files that lie beside it (FILE.1, FILE.2, ...), the replay begins with
    the oldest of them. Exit status: 0 if all plans are identical, 1 if one or a token of the model
    differs, 2 if a file cannot be read or has no request of the given id.
    """
    try:
        replay = replay_of(options.file, options.alone, "replay")
        computed = computing(replay, options)
        lives = RequestLives(replay, options.explain or "")
        with timeline(replay, options.trace) as trace:
            for plan in replay.plans(options.until):
                lives.see(plan)
                trace.planned(plan)
                if options.json:
                    print(json.dumps(plan.to_dict()))
                if computed is not None and computed.difference is not None:
                    break
    except BrokenPipeError:  # the program that reads the plans has ended
        raise
    except (RecordingError, OSError) as error:
        return unreadable("replay", error)
    out = sys.stderr if options.json else sys.stdout
    print(*report(replay, options.until), sep="\n", file=out)
    if computed is not None:
        print(*computed.report(), sep="\n", file=out)
    if options.explain is not None:
        try:
            print(lives.explanation(options.explain), file=out)
        except RequestError as error:
            return unreadable("replay", error)
    is_other = computed is not None and computed.difference is not None
    return DIVERGED if is_other else status(replay)


def computing(replay: Replay, options: ReplayOptions) -> Any:
    """A `ModelReplay`, if a model computes the replayed steps."""
    if not options.model:
        return None
    from paceline.hub.progress_bar import LoadingStatus
    from paceline.wiring.model_replay import ModelReplay  # it needs torch

    with LoadingStatus(options.model) as bar:
        return ModelReplay(replay, options.model, bar, **options.settings)


@contextmanager
def timeline(replay: Replay, path: Path | None) -> Generator[StepObserver]:
    """Writes what is replayed to a file, by the times of the recording.

    OSError if the file cannot be written.
    """
    if path is None:
        yield NOT_OBSERVED
        return
    trace_file.begin(path)
    file = TraceFile(path, f"recorded in {replay.reader.path.name}")
    trace = RecordedTrace(file, replay.scheduler, lambda: replay.now)

    def committed(plan: Plan, outputs: Outputs) -> None:
        trace.landed(plan)
        trace.committed(plan, outputs)

    replay.on_commit = committed
    try:
        yield trace
    finally:
        trace.close()


def replay_of(path: Path, alone: bool, command: str) -> Replay:
    """A replay of a file, with the older files of the run unless it is to be read alone.

    OSError or RecordingError if a file cannot be read.
    """
    try:
        return Replay(*([path] if alone else files_of_run(path)))
    except CutBeginning as error:
        older = [] if alone else older_files_of_run(path)
        if not older:
            raise
        complain(command, f"{error}; it is left out")
    return Replay(*older)


def complain_of_cuts(command: str, path: Path, replay: Replay) -> None:
    """Print where a replay diverged, or that its recording breaks off."""
    if replay.divergence is not None:
        complain(command, f"{path}: the replay diverged, {replay.divergence}")
    if replay.reader.ending not in COMPLETE:
        complain(command, f"{replay.reader.current.path}: {ending(replay)}")


def status(replay: Replay) -> int:
    if replay.divergence is not None:
        return DIVERGED
    return UNREADABLE if replay.reader.ending is RecordingEnd.DAMAGED else IDENTICAL


def complain(command: str, problem: object) -> None:
    print(f"paceline {command}: {problem}", file=sys.stderr)


def unreadable(command: str, error: Exception) -> int:
    """Print why a recording, or a request of it, cannot be read. The exit status."""
    complain(command, os_problem(error) if isinstance(error, OSError) else error)
    return UNREADABLE


def report(replay: Replay, until: int | None) -> list[str]:
    """The files, what was replayed, and whether it was identical, a line each."""
    reader, summary = replay.reader, replay.summary
    lines = [
        f"file      {file.path}, {file.size_bytes:,} bytes, made by paceline "
        f"{file.preamble.made_by}"
        for file in reader.files
    ]
    if replay.steps_before:
        lines.append(f"begins    after step {replay.steps_before:,}, where an older file ends")
    lines.append(f"replayed  {counted(summary)}")
    if reader.ending not in (RecordingEnd.CLOSED, RecordingEnd.UNREAD):
        where = f"{reader.current.path}: " if len(reader.files) > 1 else ""
        lines.append(f"ends      {where}{ending(replay)}")
    if until is not None and replay.scheduler.stats.steps < until and replay.divergence is None:
        lines.append(f"ends      before step {until:,}")
    return [*lines, verdict(replay, summary)]


def ending(replay: Replay) -> str:
    """How the last file that was read ends, and how much of it was not read."""
    file = replay.reader.current
    unread = file.size_bytes - file.read_bytes
    return file.ending.value + (f" ({unread:,} bytes were not read)" if unread else "")


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
