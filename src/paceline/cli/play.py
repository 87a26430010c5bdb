"""The command `paceline play`: the real scheduler on a small workload, as a picture."""

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from paceline.cli.fields import ScriptError
from paceline.cli.palette import MARKS, POOL, STEPS, STORED, STRONG, Palette
from paceline.cli.picture import frame, picture
from paceline.cli.script import Script, build, built_in, built_in_names, load, parse_json
from paceline.cli.stage import Stage, Turn
from paceline.cli.story import Heading, heading, life, story, summary
from paceline.core.config import Config

DEFAULT_WORKLOAD = "basics"
DEEPEST = 16
LETTERS = "".join(mark.symbol for mark in MARKS.values()) + "▓█░▒┤…"
NO_TERMINAL = (100, 40)  # letters and lines, where there is none to ask


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Play a small workload on the real scheduler and draw what it decides."
    parser.epilog = signs(Palette(colour=False, unicode=can_encode(sys.stdout)))
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    source = parser.add_argument_group("what to play").add_mutually_exclusive_group()
    source.add_argument("file", nargs="?", help="a workload in JSON or YAML; - is standard input")
    source.add_argument(
        "--workload",
        choices=built_in_names(),
        help=f"a built-in workload instead of a file (default: {DEFAULT_WORKLOAD})",
    )
    how = parser.add_argument_group("how to schedule")
    how.add_argument(
        "--set",
        metavar="NAME=VALUE",
        dest="settings",
        type=setting,
        action="append",
        default=[],
        help="a setting that outranks the workload's, such as max_num_seqs=2; may be repeated",
    )
    how.add_argument("--policy", help="who goes first: fcfs, priority, shortest, deadline, fair")
    how.add_argument(
        "--depth",
        type=whole_number(1, DEEPEST),
        default=1,
        metavar="N",
        help="plan up to N steps ahead of their results (default: 1)",
    )
    how.add_argument(
        "--max-steps",
        type=whole_number(1, 1_000_000),
        default=1_000,
        metavar="N",
        help="stop after N steps (default: 1000)",
    )
    add_display_arguments(parser.add_argument_group("how to show it"))


def add_display_arguments(group: Any) -> None:
    group.add_argument(
        "--delay",
        type=seconds,
        default=0.3,
        metavar="S",
        help="seconds between two steps in a terminal (default: 0.3)",
    )
    group.add_argument("--step", action="store_true", help="wait for Enter after each step")
    group.add_argument("--fast", action="store_true", help="only the whole picture, at once")
    group.add_argument("--no-color", action="store_true", help="symbols only; so does NO_COLOR")
    group.add_argument("--ascii", action="store_true", help="draw with ASCII letters only")
    group.add_argument(
        "--width", type=whole_number(40, 10_000), metavar="N", help="letters in a line"
    )
    group.add_argument(
        "--explain",
        metavar="ID",
        action="append",
        default=[],
        help="also tell the life of a request in sentences; may be repeated",
    )
    group.add_argument("--json", action="store_true", help="one line of JSON per step, no picture")


def signs(palette: Palette) -> str:
    """What every sign of the picture means."""
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


# -- arguments --------------------------------------------------------------


def setting(text: str) -> tuple[str, Any]:
    """NAME=VALUE, the value as JSON where the setting is not a text."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    if isinstance(Config().to_dict().get(name), str):
        return name, value
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError):
        return name, value  # of the wrong type, as the script will say


def whole_number(low: int, high: int) -> Any:
    """A checker for argparse."""

    def check(text: str) -> int:
        if not text.isdecimal() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {low} to {high}")
        return int(text)

    return check


def seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 60:  # noqa: PLR2004  a minute between two steps is a mistake
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0 to 60")
    return value


# -- the command ------------------------------------------------------------


def run(args: argparse.Namespace) -> int:
    try:
        title, script = chosen(args)
    except ScriptError as error:
        print(f"paceline play: error: {error}", file=sys.stderr)
        return 2
    stage = Stage(script, args.depth)
    turns = stage.turns(args.max_steps)
    if args.json:
        print_json(stage, turns, args.explain)
    else:
        show(stage, turns, Heading(title, script.about), args)
    return 0


def chosen(args: argparse.Namespace) -> tuple[str, Script]:
    """The workload that the arguments name, and its title."""
    overrides = dict(args.settings)
    if args.policy is not None:
        overrides["policy"] = args.policy
    title: str = args.file or args.workload or DEFAULT_WORKLOAD
    content = load(title) if args.file else parse_json(built_in(title), title)
    script = build(content, title, overrides)
    names = [ask.request.id for ask in script.asks]
    for name in args.explain:
        if name not in names:
            raise ScriptError("--explain", f"no request {name!r} in {title}: {', '.join(names)}")
    return title, script


def print_json(stage: Stage, turns: Iterator[Turn], explain: list[str]) -> None:
    for turn in turns:
        line = {
            "step": turn.plan.step,
            "time_s": round(turn.time, 6),
            "kind": turn.plan.kind,
            "plan": turn.plan.to_dict(),
            "committed": turn.committed.step if turn.committed else None,
            "outputs": turn.outputs.to_dict() if turn.outputs else {},
            "blocked": blocked_text(stage),
            "snapshot": stage.scheduler.snapshot(),
        }
        print(json.dumps(line), flush=True)
    for name in explain:
        print(json.dumps({"explain": {name: stage.scheduler.explain(name)}}), flush=True)


def blocked_text(stage: Stage) -> str | None:
    blocked = stage.history.columns[-1].blocked
    return blocked.text if blocked else None


def show(stage: Stage, turns: Iterator[Turn], title: Heading, args: argparse.Namespace) -> None:
    out = sys.stdout
    capable = out.isatty() and os.environ.get("TERM") != "dumb"
    palette = Palette(
        colour=capable and not args.no_color and not os.environ.get("NO_COLOR"),
        unicode=not args.ascii and can_encode(out),
    )
    history = stage.history
    if capable and not args.fast:
        with screen(out):
            for _ in turns:
                width, height = size(args)
                above = heading(title, history, palette, width)
                draw(out, frame(history, palette, width, height, above))
                pause(args)
    else:
        for _ in turns:
            pass
    width, _ = size(args)
    lines = heading(title, history, palette, width)
    lines += [*picture(history, palette, width), ""]
    lines += [palette.paint("what happened, and why nobody else was admitted", STRONG)]
    lines += [*story(history, palette, width), ""]
    lines += summary(history, stage.scheduler.stats, palette)
    if not stage.over:
        lines += ["", f"stopped after {len(history.columns)} steps; --max-steps plays more"]
    for name in args.explain:
        lines += ["", *life(stage.scheduler.explain(name), width)]
    print("\n".join(lines))


def size(args: argparse.Namespace) -> tuple[int, int]:
    columns, height = shutil.get_terminal_size(NO_TERMINAL)
    return args.width or columns, height


def can_encode(out: TextIO) -> bool:
    """Can the picture's letters be written at all?"""
    try:
        LETTERS.encode(out.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


# -- the animation ----------------------------------------------------------


@contextmanager
def screen(out: TextIO) -> Generator[None]:
    """A screen of its own without a cursor; whatever happens, the old one comes back."""
    out.write("\x1b[?1049h\x1b[?25l")
    try:
        yield
    finally:
        out.write("\x1b[?25h\x1b[?1049l")
        out.flush()


def draw(out: TextIO, lines: list[str]) -> None:
    """Over the last frame, line by line, so that nothing flickers."""
    out.write("\x1b[H" + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J")
    out.flush()


def pause(args: argparse.Namespace) -> None:
    """Let people look: until Enter, or for a while."""
    if args.step and sys.stdin.isatty():
        sys.stdin.readline()
    else:
        time.sleep(args.delay)
