"""`paceline play`: the real scheduler on a small workload, as a picture."""

import json
import os
import shutil
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, TextIO

import typer

from paceline.cli.command import WrongOption
from paceline.cli.main import INTERRUPTED
from paceline.core.errors import RequestError, nearest
from paceline.core.settings.config import Config
from paceline.sched.explain.sentences import plural
from paceline.testing.loop import SimulatedTurn
from paceline.viewer.play.palette import MARKS, POOL, STEPS, STORED, STRONG, Palette, letters
from paceline.viewer.play.picture import frame, picture
from paceline.viewer.play.plan_notes import ScriptError
from paceline.viewer.play.simulation import Stage
from paceline.viewer.play.summary import Heading, finish, heading, life, story, summary
from paceline.viewer.play.workload_file import (
    Script,
    build,
    built_in,
    built_in_names,
    load,
    parse_json,
)

DEFAULT_WORKLOAD = "basics"
DEEPEST = 16
LETTERS = "".join(mark.symbol for mark in MARKS.values()) + "▓█░▒┤…"
# A signal that arrives just before a sleep begins is handled at its end.
NAP_S = 0.05
NO_TERMINAL = (100, 40)  # columns and lines, if the output is no terminal


# -- arguments --------------------------------------------------------------


def setting(text: str) -> tuple[str, Any]:
    """NAME=VALUE; the value is JSON unless the setting is a text."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise typer.BadParameter(f"{text!r} is not NAME=VALUE")
    if isinstance(Config().to_dict().get(name), str):
        return name, value
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError):
        return name, value  # of the wrong type; checked with the workload


def seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 60:  # noqa: PLR2004  a minute between two steps is a mistake
        raise typer.BadParameter(f"{text!r} is not a number of seconds from 0 to 60")
    return value


WHAT, HOW, SHOWN = "what to play", "how to schedule", "how to show it"


@dataclass(frozen=True, slots=True)
class Display:
    """How a run is shown.

    Attributes:
        delay (S): Seconds between two steps in a terminal.
        step: Wait for Enter after each step.
        fast: Print the whole picture at once.
        no_color: Draw without colours; the variable NO_COLOR does the same.
        ascii: Draw with ASCII letters only.
        width (N): Columns of a line.
        explain (ID): Also explain this request; may be repeated.
        json: Print one line of JSON per step instead of a picture.
    """

    panel: ClassVar = SHOWN

    delay: Annotated[float, typer.Option(parser=seconds)] = 0.3
    step: bool = False
    fast: bool = False
    no_color: bool = False
    ascii: bool = False
    width: Annotated[int | None, typer.Option(min=40, max=10_000)] = None
    explain: list[str] = field(default_factory=list[str])
    json: bool = False


@dataclass(frozen=True, slots=True)
class Options:
    """The workload and how to play it; a file and a built-in workload exclude each other.

    Attributes:
        file (FILE): A workload in JSON or YAML; - is standard input.
        settings (NAME=VALUE): Replace a setting of the workload, such as max_num_seqs=2; may be
            repeated.
        policy: Order of admission: fcfs, priority, shortest, longest, deadline, fair, or a dotted
            path to a class, such as my_policies.Mine with PYTHONPATH=. set.
        depth (N): Plan up to N steps ahead of their results.
        max_steps (N): Stop after N steps.
    """

    file: Annotated[str | None, typer.Argument()] = None
    workload: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"A built-in workload: {', '.join(built_in_names())}.",
            show_default=DEFAULT_WORKLOAD,
            rich_help_panel=WHAT,
        ),
    ] = None
    settings: Annotated[list[Any], typer.Option("--set", parser=setting, rich_help_panel=HOW)] = (
        field(default_factory=list[Any])
    )
    policy: Annotated[str | None, typer.Option(rich_help_panel=HOW)] = None
    depth: Annotated[int, typer.Option(min=1, max=DEEPEST, rich_help_panel=HOW)] = 1
    max_steps: Annotated[int, typer.Option(min=1, max=1000000, rich_help_panel=HOW)] = 1000
    display: Display = field(default_factory=Display)

    def __post_init__(self) -> None:
        if self.file and self.workload:
            raise WrongOption(f"{self.file} and --workload {self.workload} exclude each other")
        if self.workload and self.workload not in built_in_names():
            known = built_in_names()
            hint = nearest(self.workload, known, f"; choose one of {', '.join(known)}")
            raise WrongOption(f"no built-in workload {self.workload!r}{hint}")


def closing() -> str:
    """The meaning of each sign in the picture."""
    palette = Palette(colour=False, unicode=can_encode(sys.stdout))
    named = {
        "signs of what a request does in a step, before the number of tokens it computes": MARKS,
        "steps of the discipline prefill_first": STEPS,
        "blocks, on the device and on the host": dict(enumerate((*POOL, STORED))),
    }
    lines = [
        line
        for title, marks in named.items()
        for line in (f"{title}:", *(f"  {palette.key(mark)}" for mark in marks.values()), "")
    ]
    return "\n".join(
        [*lines, "Below a request with several sequences, /1, /2, ... are the others."]
    )


# -- the command ------------------------------------------------------------


def run(options: Options) -> int:
    """Play a small workload on the real scheduler and draw what it decides."""
    try:
        title, script = chosen(options)
    except ScriptError as error:
        print(f"paceline play: error: {error}", file=sys.stderr)
        return 2
    stage = Stage(script, options.depth)
    turns = stage.turns(options.max_steps)
    if options.display.json:
        print_json(stage, turns, options.display.explain)
        return 0
    return show(stage, turns, Heading(title, script.about), options)


def chosen(options: Options) -> tuple[str, Script]:
    """The workload that the arguments name, and its title."""
    overrides = dict(options.settings)
    if options.policy is not None:
        overrides["policy"] = options.policy
    title: str = options.file or options.workload or DEFAULT_WORKLOAD
    content = load(title) if options.file else parse_json(built_in(title), title)
    script = build(content, title, overrides)
    names = [one.request.id for one in script.requests]
    for name in options.display.explain:
        if name not in names:
            raise ScriptError("--explain", f"no request {name!r} in {title}: {', '.join(names)}")
    return title, script


def print_json(stage: Stage, turns: Iterator[SimulatedTurn], explain: list[str]) -> None:
    for turn in turns:
        assert turn.plan is not None, "every turn of a played workload plans a step"
        line = {
            "step": turn.plan.step,
            "time_s": round(turn.planned_at, 6),
            "kind": turn.plan.kind,
            "plan": turn.plan.to_dict(),
            "committed": turn.committed.step if turn.committed else None,
            "outputs": turn.outputs.to_dict() if turn.outputs else {},
            "blocked": blocked_text(stage),
            "snapshot": stage.scheduler.snapshot(),
        }
        print(json.dumps(line), flush=True)
    for name in explain:
        print(json.dumps({"explain": {name: explanation(stage, name)}}), flush=True)


def blocked_text(stage: Stage) -> str | None:
    column = stage.history.columns[-1]
    blocked = column.blocked
    return blocked.sentence(later=blocked.since < column.step) if blocked else None


def explanation(stage: Stage, name: str) -> str:
    """The explanation of a request, or why there is none."""
    try:
        return stage.scheduler.explain(name)
    except RequestError:
        end = stage.history.ends.get(name)
        gone = f"ended ({finish(end)}), and not remembered" if end else "not submitted yet"
        return f"{name!r}: {gone}."


def show(stage: Stage, turns: Iterator[SimulatedTurn], title: Heading, options: Options) -> int:
    """Draw the steps, and then the whole picture: of the steps so far after an interrupt."""
    out = sys.stdout
    capable = out.isatty() and os.environ.get("TERM") != "dumb"
    palette = Palette(
        colour=capable and not options.display.no_color and not os.environ.get("NO_COLOR"),
        unicode=not options.display.ascii and can_encode(out),
    )
    history = stage.history
    animated = out if capable and not options.display.fast else None
    was_interrupted = not play_steps(stage, turns, title, options, palette, animated)
    width, _ = size(options)
    lines = heading(title, history, palette, width)
    lines += [*picture(history, palette, width), ""]
    lines += [palette.paint("what happened, and what blocked admission", STRONG)]
    lines += [*story(history, palette, width), ""]
    lines += summary(history, stage.scheduler.stats, palette)
    if not stage.over:
        advice = "interrupted" if was_interrupted else "--max-steps plays more"
        lines += ["", f"stopped after {plural(len(history.columns), 'step')}; {advice}"]
    for name in options.display.explain:
        lines += ["", *life(explanation(stage, name), width)]
    print(writable("\n".join(lines), out))
    return INTERRUPTED if was_interrupted else 0


def play_steps(
    stage: Stage,
    turns: Iterator[SimulatedTurn],
    title: Heading,
    options: Options,
    palette: Palette,
    animated: TextIO | None,
) -> bool:
    """Play all steps, each drawn where they are animated. False if an interrupt came."""
    history = stage.history
    try:
        with screen(animated) if animated else nullcontext():
            for _ in turns:
                if animated:
                    width, height = size(options)
                    above = heading(title, history, palette, width)
                    draw(animated, frame(history, palette, width, height, above))
                    pause(options)
    except KeyboardInterrupt:
        if not history.columns:
            raise
        return False
    return True


def size(options: Options) -> tuple[int, int]:
    columns, height = shutil.get_terminal_size(NO_TERMINAL)
    return options.display.width or columns, height


def can_encode(out: TextIO) -> bool:
    """Can the symbols of the picture be written?"""
    return is_writable(LETTERS, out)


def is_writable(text: str, out: TextIO) -> bool:
    try:
        text.encode(out.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def writable(text: str, out: TextIO) -> str:
    """The text, with question marks for characters that cannot be written."""
    if is_writable(text, out):
        return text
    return "".join(one if is_writable(one, out) else "?" * letters(one) for one in text)


# -- the animation ----------------------------------------------------------


@contextmanager
def screen(out: TextIO) -> Generator[None]:
    """The alternate screen without a cursor; the old screen is always restored."""
    out.write("\x1b[?1049h\x1b[?25l")
    try:
        yield
    finally:
        out.write("\x1b[?25h\x1b[?1049l")
        out.flush()


def draw(out: TextIO, lines: list[str]) -> None:
    """Draw over the last frame line by line, without flicker."""
    content = "\x1b[H" + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J"
    out.write(writable(content, out))
    out.flush()


def pause(options: Options) -> None:
    """Wait for Enter, or for the delay."""
    if options.display.step and sys.stdin.isatty():
        sys.stdin.readline()
        return
    end = time.monotonic() + options.display.delay
    while (left_s := end - time.monotonic()) > 0:
        time.sleep(min(left_s, NAP_S))
