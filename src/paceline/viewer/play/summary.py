"""A history in words: what happened in each step, and a table of the requests."""

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap

from paceline.sched.explain.sentences import plural, tokens
from paceline.sched.stats import Stats
from paceline.viewer.play.history import Column, End, History, Kind, Note
from paceline.viewer.play.palette import DIM, MARKS, STRONG, Palette, fit, letters
from paceline.viewer.play.plan_notes import blocks

INDENT = len("step 123  ")
FIRM = "\u00a0"  # a space at which a line does not break


def story(history: History, palette: Palette, width: int) -> list[str]:
    """The steps in which something happened. A reason is given once, with how long it held."""
    lines: list[str] = []
    for column in history.columns:
        notes = list(column.notes)
        if column.blocked and column.blocked.since == column.step:
            how_long = until(history, column)
            notes.append(blocked_note(column.blocked.sentence(later=bool(how_long)), how_long))
        lines += step_lines(column.step, notes, palette, width)
    return lines


def latest(history: History, palette: Palette, width: int) -> list[str]:
    """The last step, with the reason why admission is blocked."""
    column = history.columns[-1]
    notes = list(column.notes)
    if column.blocked:
        since = column.blocked.since
        how_long = f"since step {since}" if since < column.step else ""
        notes.append(blocked_note(column.blocked.sentence(later=bool(how_long)), how_long))
    return step_lines(column.step, notes or [Note(Kind.DECODE, "all continue")], palette, width)


def blocked_note(why: str, how_long: str) -> Note:
    return Note(Kind.WAITING, f"blocked: {why}" + (f" ({how_long})" if how_long else ""))


def until(history: History, column: Column) -> str:
    """How long the reason of this step stayed the same."""
    last = column.step
    for later in history.columns[column.step :]:
        if later.blocked is None or later.blocked.since != column.step:
            break
        last = later.step
    return f"until step {last}" if last > column.step else ""


def step_lines(step: int, notes: Sequence[Note], palette: Palette, width: int) -> list[str]:
    """The number of a step and its notes, one per line, wrapped."""
    lines: list[str] = []
    for note in notes:
        mark = MARKS[note.kind]
        label = "" if lines else f"step {step}"
        first, *rest = wrap(palette.ruled(note.text), max(width - INDENT - 2, 20))
        symbol = palette.paint(palette.symbol(mark), mark.colour)
        lines.append(f"{palette.paint(label.ljust(INDENT), DIM)}{symbol} {first}")
        lines += [" " * (INDENT + 2) + line for line in rest]
    return lines


# -- the end ----------------------------------------------------------------


def summary(history: History, stats: Stats, palette: Palette) -> list[str]:
    """One line per request, and the totals."""
    head = ["request", "output", "waited", "cached", "computed", "preempted", "finish"]
    rows = [head]
    for one in history.asked:
        waited = waiting(history.waited_steps(one.id), history.waited_s(one.id))
        counts = [
            history.cached(one.id),
            history.computed(one.id),
            history.preemptions[one.id],
        ]
        shown = [str(count) if count else "-" for count in counts]
        end = finish(history.ends.get(one.id))
        rows.append([one.id, str(history.yielded[one.id]), waited, *shown, end])
    table = aligned(rows, palette)
    return [*table, "", *totals(history, stats)]


def waiting(steps: int, time: float) -> str:
    if not steps:
        return "-"
    return f"{plural(steps, 'step')}, {time * 1000:.0f} ms"


def life(text: str, width: int) -> list[str]:
    """The explanation of a request, wrapped; continued lines are indented further."""
    return [
        part
        for line in text.splitlines()
        for part in wrap(line, width, subsequent_indent="    ", drop_whitespace=True)
    ]


def finish(end: End | None) -> str:
    return f"{end.how} in step {end.step}" if end else "not ended"


def aligned(rows: Sequence[Sequence[str]], palette: Palette) -> list[str]:
    """Columns of minimal width; text is aligned to the left, numbers to the right."""
    widths = [max(letters(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines: list[str] = []
    for row in rows:
        cells = [
            fit(text, width) if column in (0, len(row) - 1) else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return [palette.paint(lines[0], DIM), *lines[1:]]


def totals(history: History, stats: Stats) -> list[str]:
    columns, rules = history.columns, history.rules
    computed = sum(column.total for column in columns)
    share = computed / (len(columns) * rules.budget) if columns else 0.0
    peak = max((c.levels.shared + c.levels.held for c in columns), default=0)
    lines = [
        f"{len(columns)} steps, {computed} tokens computed ({share:.0%} of the budget), "
        f"{sum(history.yielded.values())} generated, in {history.time * 1000:.0f} ms",
        f"prefix cache: {stats.prefix_hits} of {stats.prefix_queries} tokens found "
        f"({rate(stats.prefix_hits, stats.prefix_queries)}); "
        f"at most {peak} of {rules.blocks} blocks held",
        plural(stats.preemptions, "preemption")
        + (f"; {tokens(history.computed_again())} computed again" if stats.preemptions else ""),
    ]
    if rules.host_blocks:
        lines.append(
            f"host: {blocks(stats.swapped_out_blocks)} swapped out, {stats.swapped_in_blocks} "
            f"back in; no room for {plural(stats.swaps_refused, 'preemption')}"
        )
    if stats.forks:
        forks = plural(stats.forks, "fork")
        lines.append(f"sequence groups: {forks}, {blocks(stats.copied_blocks)} copied")
    if stats.drafted:
        lines.append(
            f"drafts: {stats.accepted} of {stats.drafted} right "
            f"({rate(stats.accepted, stats.drafted)})"
        )
    return lines


def rate(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "0%"


@dataclass(frozen=True, slots=True)
class Heading:
    """The title of the picture, and what the workload is about."""

    title: str
    about: str


def heading(title: Heading, history: History, palette: Palette, width: int) -> list[str]:
    rules = history.rules
    limits = [
        f"policy {rules.policy}",
        f"{rules.slots} slots",
        f"{rules.budget} tokens a step",
        f"{rules.blocks} blocks of {rules.block_size}",
    ]
    if rules.host_blocks:
        limits.append(f"{rules.host_blocks} more on the host")
    if rules.discipline != "unified":
        limits.insert(0, f"discipline {rules.discipline}")
    if rules.depth > 1:
        limits.append(f"planned up to {rules.depth} steps ahead")
    lines = [palette.paint(line, STRONG) for line in wrap(f"paceline play: {title.title}", width)]
    lines += [palette.ruled(line) for line in wrap(title.about, width)]
    lines += [palette.paint(palette.ruled(line), DIM) for line in wrapped(limits, width)]
    return [*lines, ""]


def wrapped(parts: Sequence[str], width: int) -> list[str]:
    """Parts separated by dots; lines break after a dot."""
    text = f"{FIRM}· ".join(part.replace(" ", FIRM) for part in parts)
    return [line.replace(FIRM, " ") for line in wrap(text, width)]
