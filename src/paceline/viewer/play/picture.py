"""Draw a history as lines of text: requests down, steps across, the block pool below."""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from textwrap import wrap

from paceline.viewer.play.history import Column, History, Levels, PictureLine
from paceline.viewer.play.palette import (
    BLANK,
    CACHED,
    DIM,
    FULL,
    HELD,
    MARKS,
    POOL,
    SHARED,
    STEPS,
    STORED,
    STRONG,
    Mark,
    Palette,
    fit,
    letters,
)
from paceline.viewer.play.plan_notes import blocks
from paceline.viewer.play.summary import latest, story

WIDEST_NAME = 14
CHART_LINES, HOST_LINES = 5, 2
WIDEST_BAR, NARROWEST_BAR = 64, 8
TALL = 36  # lines of a screen with room to spare

Stack = list[tuple[Mark, int]]  # which mark reaches up to which block, from the bottom


class Sheet:
    """Column widths of one picture, the same for all of its bands.

    step            1   2   3  ...        <- label, then cells of `cell` + 1 letters
    kind          pre pre dec             <- only where steps are of one kind
    a       40+12 ▶32  ▶8  •1
    tokens         32  32   6
    blocks  24 ┤      ░░░ ███
    host     8 ┤          ▒▒▒             <- only where there are blocks on the host
    """

    def __init__(self, history: History, palette: Palette, width: int) -> None:
        self.history, self.palette = history, palette
        lines, rules = history.lines, history.rules
        names = max(letters(one.name) for one in lines)
        self.name = min(max(names, len("tokens")), WIDEST_NAME)
        self.size = max(len(one.size) for one in lines)
        self.tag = min(max(letters(one.tag) for one in lines), WIDEST_NAME)
        cells = [cell.tokens for column in history.columns for cell in column.cells.values()]
        totals = [max(column.total, column.step) for column in history.columns]
        self.cell = max(len(str(max(cells, default=0))) + 1, len(str(max(totals, default=0))), 3)
        self.label = self.name + 2 + self.size + (1 + self.tag if self.tag else 0)
        lacking = len(f"blocks {max(rules.blocks, rules.host_blocks)} ┤") - self.label
        if lacking > 0:
            self.size, self.label = self.size + lacking, self.label + lacking
        self.fitting = max((width - self.label - 1) // (self.cell + 1), 1)
        self.kinds = any(column.kind for column in history.columns)
        self.chart_lines = min(CHART_LINES, rules.blocks) + min(HOST_LINES, rules.host_blocks)

    def lines(
        self, columns: Sequence[Column], shown: Iterable[PictureLine], chart: bool = True
    ) -> list[str]:
        """One band: some steps, some requests, and the pool."""
        steps = "".join(str(column.step).rjust(self.cell + 1) for column in columns)
        lines = [self.palette.paint(fit("step", self.label) + steps, DIM)]
        lines += [self._kinds(columns)] if self.kinds else []
        lines += [self._request(one, columns) for one in shown]
        lines += [self._totals(columns), *(self._charts(columns) if chart else ())]
        return [line.rstrip() for line in lines]

    def _kinds(self, columns: Sequence[Column]) -> str:
        """Which steps are all of one kind."""
        text = self.palette.paint(fit("kind", self.label), DIM)
        for column in columns:
            mark = STEPS.get(column.kind)
            word = mark.symbol if mark else ""
            text += " " * (self.cell + 1 - len(word))
            text += self.palette.paint(word, mark.colour) if mark else ""
        return text

    def _request(self, one: PictureLine, columns: Sequence[Column]) -> str:
        cells = "".join(self.palette.cell(c.cells.get(one.id), self.cell) for c in columns)
        ellipsis = self.palette.ruled("…")
        name = self.palette.paint(fit(one.name, self.name, ellipsis), STRONG)
        tag = f" {fit(one.tag, self.tag, ellipsis)}" if self.tag else ""
        return f"{name}  {self.palette.paint(one.size.rjust(self.size) + tag, DIM)}{cells}"

    def _totals(self, columns: Sequence[Column]) -> str:
        """Tokens of each step; a step that uses the whole budget is highlighted."""
        budget = self.history.rules.budget
        text = self.palette.paint(fit("tokens", self.label), DIM)
        for column in columns:
            number = str(column.total).rjust(self.cell + 1)
            text += self.palette.paint(number, FULL if column.total >= budget else DIM)
        return text

    def _charts(self, columns: Sequence[Column]) -> list[str]:
        """The pools as columns of blocks per step, held ones at the bottom."""
        rules = self.history.rules
        device = [stacked(column.levels) for column in columns]
        lines = self._chart("blocks", rules.blocks, CHART_LINES, device)
        if rules.host_blocks:
            least = -(-rules.host_blocks // (2 * HOST_LINES))  # a single block shows
            used = [column.levels.host for column in columns]
            host = [[(STORED, max(count, least) if count else 0)] for count in used]
            lines += self._chart("host", rules.host_blocks, HOST_LINES, host)
        return lines

    def _chart(self, name: str, total: int, most: int, stacks: Sequence[Stack]) -> list[str]:
        height = min(most, total)
        lines: list[str] = []
        for line in range(height):
            top = round(total * (height - line) / height)
            axis = self.palette.ruled(f"{top} ┤")
            label = fit("" if line else name, self.label - len(axis)) + axis
            middle = total * (height - line - 0.5) / height
            cells = (self._bar_at(stack, middle) for stack in stacks)
            lines.append(self.palette.paint(label, DIM) + "".join(cells))
        return lines

    def _bar_at(self, stack: Stack, height: float) -> str:
        """The mark at this height of a column, in blocks."""
        for mark, top in stack:
            if height <= top:
                bar = self.palette.symbol(mark) * self.cell
                return " " + self.palette.paint(bar, mark.colour)
        return " " * (self.cell + 1)


def stacked(levels: Levels) -> Stack:
    """The blocks on the device that are in use or cached."""
    counts = (levels.shared, levels.held, levels.cached)
    return list(zip((SHARED, HELD, CACHED), accumulate(counts), strict=True))


# -- whole pictures ---------------------------------------------------------


def picture(history: History, palette: Palette, width: int) -> list[str]:
    """All steps, in bands as wide as the terminal. A band omits requests that are absent."""
    sheet = Sheet(history, palette, width)
    lines: list[str] = []
    for first in range(0, len(history.columns), sheet.fitting):
        columns = history.columns[first : first + sheet.fitting]
        lines += [*sheet.lines(columns, present(history.lines, columns)), ""]
    return lines + legend(history, palette, width)


def present(lines: Iterable[PictureLine], columns: Iterable[Column]) -> list[PictureLine]:
    there = {line for column in columns for line in column.cells}
    return [one for one in lines if one.id in there]


def frame(
    history: History, palette: Palette, width: int, height: int, above: Sequence[str] = ()
) -> list[str]:
    """One screen: the latest steps that fit, what they did, and the legend.

    The lines `above` are shown if the screen is tall enough.
    """
    sheet = Sheet(history, palette, width)
    now = latest(history, palette, width)
    head = [*(above if height >= TALL else ()), headline(history, palette, width), ""]
    bars = ["", *pool_bars(history, palette, width), ""]
    keys = ["", *legend(history, palette, width)]
    fixed = 3 if sheet.kinds else 2  # steps and tokens, and kinds
    room = height - 1 - len(head) - fixed - len(bars) - len(now) - len(keys)
    shown = most_interesting(history, max(room, 1))
    room -= len(shown)
    chart = room >= sheet.chart_lines
    room -= sheet.chart_lines if chart else 0
    grid = sheet.lines(history.columns[-sheet.fitting :], shown, chart)
    before = story(history.until(-1), palette, width)[-room:] if room > 0 else []
    space = [""] * (room - len(before))
    return [*head, *grid, *bars, *before, *now, *space, *keys][: max(height - 1, 1)]


def most_interesting(history: History, most: int) -> list[PictureLine]:
    """The lines to show if not all fit: unfinished requests first, then the latest to end."""
    if len(history.lines) <= most:
        return history.lines
    here = history.columns[-1].cells
    last = {name: end.step for name, end in history.ends.items()}
    order = sorted(history.lines, key=lambda one: (one.id not in here, -last.get(one.id, 0)))
    chosen = {one.id for one in order[:most]}
    return [one for one in history.lines if one.id in chosen]


def headline(history: History, palette: Palette, width: int) -> str:
    column, rules = history.columns[-1], history.rules
    moves = column.moves
    counts = [(moves.copied, "copied"), (moves.out, "to the host"), (moves.back, "from the host")]
    parts = [
        f"step {column.step}",
        *([column.kind] if column.kind else []),
        f"{column.time * 1000:.0f} ms",
        f"{column.total} of {rules.budget} tokens",
        *(f"{blocks(count)} {what}" for count, what in counts if count),
        f"policy {rules.policy}",
    ]
    if rules.depth > 1:
        parts.append(f"planned up to {rules.depth} steps ahead")
    line = fit("  ·  ".join(parts), width).rstrip()
    return palette.paint(palette.ruled(line), STRONG)


def pool_bars(history: History, palette: Palette, width: int) -> list[str]:
    """The current pools, on the device and on the host."""
    levels, host = history.columns[-1].levels, history.rules.host_blocks
    bars = [pool_bar(levels, palette, width)]
    if host:
        used = [(STORED, levels.host), (BLANK, host - levels.host)]
        bars.append(bar("host", used, palette, width))
    return bars


def pool_bar(levels: Levels, palette: Palette, width: int) -> str:
    counts = (levels.shared, levels.held, levels.cached, levels.blank)
    return bar("blocks", list(zip(POOL, counts, strict=True)), palette, width)


def bar(name: str, parts: Sequence[tuple[Mark, int]], palette: Palette, width: int) -> str:
    """A pool, with one letter per block if there is room."""
    total = sum(count for _, count in parts)
    words = [f"{count} {mark.meaning.partition(',')[0]}" for mark, count in parts if count]
    text = palette.ruled(f"  {' · '.join(words)}  (of {total})")
    label = fit(name, len("blocks")) + "  "
    room = max(min(WIDEST_BAR, width - len(label) - len(text)), NARROWEST_BAR)
    text = fit(text, min(len(text), width - len(label) - room), palette.ruled("…"))
    ends = [round(end * min(room / total, 1)) for end in accumulate(count for _, count in parts)]
    drawn = "".join(
        palette.paint(palette.symbol(mark) * (end - start), mark.colour)
        for (mark, _), start, end in zip(parts, [0, *ends], ends, strict=False)
    )
    return f"{palette.paint(label, DIM)}{drawn}{palette.paint(text, DIM)}"


def legend(history: History, palette: Palette, width: int) -> list[str]:
    """The marks that occur, and what they mean."""
    looks = {cell.look for column in history.columns for cell in column.cells.values()}
    cells = [mark for kind, mark in MARKS.items() if kind in looks]
    steps = [mark for kind, mark in STEPS.items() if kind in {c.kind for c in history.columns}]
    shared = any(column.levels.shared for column in history.columns)
    pool = [mark for mark in (SHARED, HELD, CACHED) if shared or mark is not SHARED]
    host = [STORED] if history.rules.host_blocks else []
    named = {"kind": steps, "cells": cells, "blocks": pool, "host": host}
    lines = [
        line
        for name, marks in named.items()
        for line in laid_out([(palette.key(m), palette.key_size(m)) for m in marks], name, width)
        if marks
    ]
    one = history.asked[0]
    hint = (
        f"{one.size}: {one.prompt} tokens of prompt, at most {one.most} new; "
        "the number in a cell: tokens computed in that step"
    )
    if any(other.width > 1 for other in history.asked):
        hint += "; /1: another sequence of the request above it"
    return lines + [palette.paint(line, DIM) for line in wrap(hint, width)]


def laid_out(entries: Sequence[tuple[str, int]], name: str, width: int) -> list[str]:
    """Entries with their widths, in as many lines as they need."""
    margin = len("blocks  ")
    lines, used = [fit(name, margin)], margin
    for text, size in entries:
        if used + size > width and used > margin:
            lines.append(" " * margin)
            used = margin
        lines[-1] += text + "   "
        used += size + 3
    return [line.rstrip() for line in lines]
