"""Draw a history as lines of text: requests down, steps across, the block pool below."""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from textwrap import wrap

from paceline.cli.history import Asked, Column, History, Levels
from paceline.cli.palette import (
    CACHED,
    DIM,
    FULL,
    HELD,
    MARKS,
    POOL,
    SHARED,
    STRONG,
    Mark,
    Palette,
    fit,
    letters,
)
from paceline.cli.story import latest, story

WIDEST_NAME = 14
CHART_LINES = 5
WIDEST_BAR, NARROWEST_BAR = 64, 8
TALL = 36  # lines of a screen with room to spare


class Sheet:
    """Measures of one picture, the same for all of its bands.

    step            1   2   3  ...        <- label, then cells of `cell` + 1 letters
    a       40+12 ▶32  ▶8  •1
    tokens         32  32   6
    blocks  24 ┤      ░░░ ███
    """

    def __init__(self, history: History, palette: Palette, width: int) -> None:
        self.history, self.palette = history, palette
        names = max(letters(one.id) for one in history.asked)
        self.name = min(max(names, len("tokens")), WIDEST_NAME)
        self.size = max(len(size_of(one)) for one in history.asked)
        self.tag = min(max(letters(one.tag) for one in history.asked), WIDEST_NAME)
        cells = [cell.tokens for column in history.columns for cell in column.cells.values()]
        totals = [max(column.total, column.step) for column in history.columns]
        self.cell = max(len(str(max(cells, default=0))) + 1, len(str(max(totals, default=0))), 3)
        self.label = self.name + 2 + self.size + (1 + self.tag if self.tag else 0)
        lacking = len(f"blocks {history.rules.blocks} ┤") - self.label
        if lacking > 0:
            self.size, self.label = self.size + lacking, self.label + lacking
        self.fitting = max((width - self.label - 1) // (self.cell + 1), 1)

    def lines(
        self, columns: Sequence[Column], asked: Iterable[Asked], chart: bool = True
    ) -> list[str]:
        """One band: some steps, some requests, and the pool."""
        steps = "".join(str(column.step).rjust(self.cell + 1) for column in columns)
        lines = [self.palette.paint(fit("step", self.label) + steps, DIM)]
        lines += [self._request(one, columns) for one in asked]
        lines += [self._totals(columns), *(self._chart(columns) if chart else ())]
        return [line.rstrip() for line in lines]

    def _request(self, one: Asked, columns: Sequence[Column]) -> str:
        cells = "".join(self.palette.cell(c.cells.get(one.id), self.cell) for c in columns)
        ellipsis = self.palette.ruled("…")
        name = self.palette.paint(fit(one.id, self.name, ellipsis), STRONG)
        tag = f" {fit(one.tag, self.tag, ellipsis)}" if self.tag else ""
        return f"{name}  {self.palette.paint(size_of(one).rjust(self.size) + tag, DIM)}{cells}"

    def _totals(self, columns: Sequence[Column]) -> str:
        """Tokens of each step; those that use the whole budget stand out."""
        budget = self.history.rules.budget
        text = self.palette.paint(fit("tokens", self.label), DIM)
        for column in columns:
            number = str(column.total).rjust(self.cell + 1)
            text += self.palette.paint(number, FULL if column.total >= budget else DIM)
        return text

    def _chart(self, columns: Sequence[Column]) -> list[str]:
        """The pool as a column of blocks per step, held ones at the bottom."""
        total = self.history.rules.blocks
        height = min(CHART_LINES, total)
        lines: list[str] = []
        for line in range(height):
            top = round(total * (height - line) / height)
            name = "blocks" if line == 0 else ""
            axis = self.palette.ruled(f"{top} ┤")
            label = fit(name, self.label - len(axis)) + axis
            middle = total * (height - line - 0.5) / height
            cells = (self._bar_at(column.levels, middle) for column in columns)
            lines.append(self.palette.paint(label, DIM) + "".join(cells))
        return lines

    def _bar_at(self, levels: Levels, height: float) -> str:
        """What is at this height of a column, in blocks."""
        for mark, top in stacked(levels):
            if height <= top:
                colour = mark.colour
                return " " + self.palette.paint(self.palette.symbol(mark) * self.cell, colour)
        return " " * (self.cell + 1)


def size_of(one: Asked) -> str:
    return f"{one.prompt}+{one.most}"


def stacked(levels: Levels) -> list[tuple[Mark, int]]:
    """Which mark reaches up to which block, from the bottom; above that it is blank."""
    counts = (levels.shared, levels.held, levels.cached)
    return list(zip((SHARED, HELD, CACHED), accumulate(counts), strict=True))


# -- whole pictures ---------------------------------------------------------


def picture(history: History, palette: Palette, width: int) -> list[str]:
    """All steps, in bands as wide as the terminal. A band leaves out who is not there."""
    sheet = Sheet(history, palette, width)
    lines: list[str] = []
    for first in range(0, len(history.columns), sheet.fitting):
        columns = history.columns[first : first + sheet.fitting]
        lines += [*sheet.lines(columns, present(history.asked, columns)), ""]
    return lines + legend(history, palette, width)


def present(asked: Iterable[Asked], columns: Iterable[Column]) -> list[Asked]:
    there = {name for column in columns for name in column.cells}
    return [one for one in asked if one.id in there]


def frame(
    history: History, palette: Palette, width: int, height: int, above: Sequence[str] = ()
) -> list[str]:
    """The latest steps, as many as fit, and what they did: one screen with the legend below.

    The lines `above` are shown where the screen has more room than the rest needs.
    """
    sheet = Sheet(history, palette, width)
    now = latest(history, palette, width)
    head = [*(above if height >= TALL else ()), headline(history, palette, width), ""]
    bar = ["", pool_bar(history.columns[-1].levels, palette, width), ""]
    keys = ["", *legend(history, palette, width)]
    room = height - 1 - len(head) - 2 - len(bar) - len(now) - len(keys)  # 2: steps and tokens
    asked = most_interesting(history, max(room, 1))
    room -= len(asked)
    chart = room >= CHART_LINES
    room -= CHART_LINES if chart else 0
    grid = sheet.lines(history.columns[-sheet.fitting :], asked, chart)
    before = story(history.until(-1), palette, width)[-room:] if room > 0 else []
    space = [""] * (room - len(before))
    return [*head, *grid, *bar, *before, *now, *space, *keys][: max(height - 1, 1)]


def most_interesting(history: History, most: int) -> list[Asked]:
    """Those to show where not all fit: the unfinished, then the latest to end."""
    if len(history.asked) <= most:
        return list(history.asked)
    here = history.columns[-1].cells
    last = {one.id: history.ends[one.id].step for one in history.asked if one.id in history.ends}
    order = sorted(history.asked, key=lambda one: (one.id not in here, -last.get(one.id, 0)))
    chosen = {one.id for one in order[:most]}
    return [one for one in history.asked if one.id in chosen]


def headline(history: History, palette: Palette, width: int) -> str:
    column, rules = history.columns[-1], history.rules
    parts = [
        f"step {column.step}",
        f"{column.time * 1000:.0f} ms",
        f"{column.total} of {rules.budget} tokens",
        f"policy {rules.policy}",
    ]
    if rules.depth > 1:
        parts.append(f"planned up to {rules.depth} steps ahead")
    line = fit("  ·  ".join(parts), width).rstrip()
    return palette.paint(palette.ruled(line), STRONG)


def pool_bar(levels: Levels, palette: Palette, width: int) -> str:
    """The pool now, one letter per block where there is room."""
    counts = (levels.shared, levels.held, levels.cached, levels.blank)
    named = [
        (mark.meaning.partition(",")[0], count) for mark, count in zip(POOL, counts, strict=True)
    ]
    words = [f"{count} {name}" for name, count in named if count]
    text = palette.ruled(f"  {' · '.join(words)}  (of {levels.total})")
    room = max(min(WIDEST_BAR, width - len("blocks  ") - len(text)), NARROWEST_BAR)
    text = fit(text, min(len(text), width - len("blocks  ") - room), palette.ruled("…"))
    ends = [round(end * min(room / levels.total, 1)) for end in accumulate(counts)]
    bar = "".join(
        palette.paint(palette.symbol(mark) * (end - start), mark.colour)
        for mark, start, end in zip(POOL, [0, *ends], ends, strict=False)
    )
    return f"{palette.paint('blocks', DIM)}  {bar}{palette.paint(text, DIM)}"


def legend(history: History, palette: Palette, width: int) -> list[str]:
    """The marks that occur, and what they mean."""
    looks = {cell.look for column in history.columns for cell in column.cells.values()}
    cells = [mark for kind, mark in MARKS.items() if kind in looks]
    shared = any(column.levels.shared for column in history.columns)
    pool = [mark for mark in (SHARED, HELD, CACHED) if shared or mark is not SHARED]
    lines = laid_out([(palette.key(m), len(m.meaning) + 2) for m in cells], "cells   ", width)
    lines += laid_out([(palette.key(m), len(m.meaning) + 2) for m in pool], "blocks  ", width)
    one = history.asked[0]
    hint = (
        f"{size_of(one)}: {one.prompt} tokens of prompt, at most {one.most} new; "
        "the number in a cell: tokens computed in that step"
    )
    return lines + [palette.paint(line, DIM) for line in wrap(hint, width)]


def laid_out(entries: Sequence[tuple[str, int]], name: str, width: int) -> list[str]:
    """Entries, each with the letters it takes, in as many lines as they need."""
    lines, used = [name], len(name)
    for text, size in entries:
        if used + size > width and used > len(name):
            lines.append(" " * len(name))
            used = len(name)
        lines[-1] += text + "   "
        used += size + 3
    return [line.rstrip() for line in lines]
