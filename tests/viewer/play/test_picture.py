"""The picture: measured, and compared with the plans it was drawn from."""

import re
from dataclasses import replace

import pytest

from paceline.viewer.play.history import (
    Blocked,
    Cell,
    Column,
    CopiedBlocks,
    History,
    Kind,
    Levels,
    Note,
    PlayedRequest,
    Rules,
)
from paceline.viewer.play.palette import MARKS, Palette, fit, letters
from paceline.viewer.play.picture import frame, headline, legend, picture, pool_bar, pool_bars
from paceline.viewer.play.summary import Heading, heading, latest, story

PLAIN = Palette(colour=False, unicode=True)
ASCII = Palette(colour=False, unicode=False)
COLOUR = Palette(colour=True, unicode=True)
RULES = Rules(
    discipline="unified",
    policy="fcfs",
    depth=1,
    slots=4,
    budget=32,
    blocks=10,
    block_size=8,
    host_blocks=0,
)
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def column(step: int, **cells: Cell) -> Column:
    total = sum(cell.tokens for cell in cells.values())
    return Column(step, step * 0.02, total, Levels(1, 4, 2, 3), cells, [], None)


def history(*columns: Column, names: str = "ab", rules: Rules = RULES) -> History:
    made = History([PlayedRequest(name, 40, 8, "") for name in names], rules)
    made.columns = list(columns)
    return made


def steps(count: int) -> History:
    return history(*(column(n, a=Cell(Kind.DECODE, 1)) for n in range(1, count + 1)))


def test_one_line_per_request_and_one_cell_per_step() -> None:
    drawn = picture(
        history(
            column(1, a=Cell(Kind.PREFILL, 32), b=Cell(Kind.WAITING)),
            column(2, a=Cell(Kind.PREFILL, 8), b=Cell(Kind.HIT, 16, cached=24)),
            column(3, a=Cell(Kind.DECODE, 1, ended=True), b=Cell(Kind.PREEMPTED)),
        ),
        PLAIN,
        width=80,
    )
    assert drawn[:9] == [
        "step           1   2   3",
        "a       40+8 ▶32  ▶8  ■1",
        "b       40+8   · ◆16   ✗",
        "tokens        32  24   1",
        "blocks  10 ┤",
        "         8 ┤ ░░░ ░░░ ░░░",
        "         6 ┤ ███ ███ ███",
        "         4 ┤ ███ ███ ███",
        "         2 ┤ ▓▓▓ ▓▓▓ ▓▓▓",
    ]


def test_steps_of_one_kind_are_named_below_their_number() -> None:
    first, second, third = (column(n, a=Cell(Kind.DECODE, 1)) for n in (1, 2, 3))
    first.kind, second.kind = "prefill", "decode"
    drawn = picture(history(first, second, third), PLAIN, width=80)
    assert drawn[:3] == [
        "step           1   2   3",
        "kind         pre dec",
        "a       40+8  •1  •1  •1",
    ]
    assert "kind    pre nothing but prefill   dec nothing but decode" in drawn


def test_steps_without_a_kind_have_no_line_for_it() -> None:
    assert not any(line.startswith("kind") for line in picture(steps(3), PLAIN, width=80))


def test_the_host_is_drawn_below_the_device() -> None:
    made = steps(4)
    made.rules = replace(RULES, host_blocks=20)
    for one, used in zip(made.columns, (0, 1, 11, 20), strict=True):
        one.levels = replace(one.levels, host=used)
    drawn = picture(made, PLAIN, width=80)
    top = next(place for place, line in enumerate(drawn) if line.startswith("host"))
    assert drawn[top : top + 2] == [
        "host    20 ┤             ▒▒▒",
        "        10 ┤     ▒▒▒ ▒▒▒ ▒▒▒",
    ]
    assert "host    ▒ swapped out" in drawn
    assert pool_bars(made, PLAIN, 80)[1] == "host    " + "▒" * 20 + "  20 swapped out  (of 20)"


def test_further_sequences_stand_below_their_request() -> None:
    made = History(
        [PlayedRequest("chat", 40, 8, "n=3", width=3), PlayedRequest("b", 9, 4, "")], RULES
    )
    cells = {"chat": Cell(Kind.PREFILL, 1), "1_chat": Cell(Kind.FORKED, 1), "b": Cell(Kind.WAITING)}
    made.columns = [column(1, **cells)]
    drawn = picture(made, PLAIN, width=80)
    assert drawn[1:4] == [
        "chat    40+8 n=3  ▶1",
        "  /1              ↳1",
        "b        9+4       ·",
    ]
    assert "/1: another sequence of the request above it" in " ".join(drawn)
    assert not any(line.startswith("  /2") for line in drawn)


def test_the_headline_counts_what_a_step_moves() -> None:
    made = steps(1)
    assert "block" not in headline(made, PLAIN, 200)
    made.columns[0].kind = "decode"
    made.columns[0].moves = CopiedBlocks(copied=1, out=4, back=2)
    told = headline(made, PLAIN, 200)
    assert told.startswith("step 1  ·  decode  ·  20 ms  ·  1 of 32 tokens")
    assert "1 block copied  ·  4 blocks to the host  ·  2 blocks from the host" in told


def test_every_kind_has_a_symbol_of_its_own() -> None:
    assert set(MARKS) == set(Kind)
    for symbols in ([m.symbol for m in MARKS.values()], [m.plain for m in MARKS.values()]):
        assert len(set(symbols)) == len(symbols)
    assert all(mark.plain.isascii() for mark in MARKS.values())


@pytest.mark.parametrize("width", [40, 60, 80, 133])
def test_bands_fit_the_width_and_show_every_step_once(width: int) -> None:
    drawn = picture(steps(70), PLAIN, width)
    assert max(map(len, drawn)) <= width
    numbers = [int(n) for line in drawn if line.startswith("step ") for n in line.split()[1:]]
    assert numbers == list(range(1, 71))


def test_a_band_leaves_out_who_is_not_there() -> None:
    columns = [column(n, **{"a" if n <= 20 else "b": Cell(Kind.DECODE, 1)}) for n in range(1, 41)]
    drawn = picture(history(*columns), PLAIN, width=13 + 20 * 4)
    bands = "\n".join(drawn).split("\n\n")
    assert ["\na " in band for band in bands[:2]] == [True, False]
    assert ["\nb " in band for band in bands[:2]] == [False, True]


def test_large_numbers_get_wider_cells() -> None:
    drawn = picture(
        history(column(1, a=Cell(Kind.PREFILL, 8192)), column(2, a=Cell(Kind.PREFILL, 17))),
        PLAIN,
        width=80,
    )
    assert drawn[1] == "a       40+8 ▶8192   ▶17"


def test_the_whole_pool_is_labelled_however_large() -> None:
    rules = replace(RULES, blocks=100_000)
    drawn = picture(history(column(1, a=Cell(Kind.DECODE, 1)), rules=rules), PLAIN, width=80)
    assert any(line.startswith("blocks 100000 ┤") for line in drawn)


def test_colour_changes_nothing_but_the_colour() -> None:
    made = history(
        column(1, a=Cell(Kind.PREFILL, 32), b=Cell(Kind.PARKED)),
        column(2, a=Cell(Kind.AGAIN, 8, cached=8), b=Cell(Kind.ABORTED)),
        column(3, a=Cell(Kind.DECODE, 1, dropped=True)),
    )
    painted = picture(made, COLOUR, 80)
    stripped = [ESCAPE.sub("", line).rstrip().replace("\u00a0", " ") for line in painted]
    assert stripped == picture(made, PLAIN, 80)
    assert painted != stripped


def test_ascii_is_ascii() -> None:
    cells = {kind: Cell(kind, 1) for kind in Kind}
    names = [f"request-{kind.name.lower()}" for kind in Kind]
    rules = replace(RULES, host_blocks=4)
    made = History(
        [PlayedRequest(name, 4, 4, "a long tag beyond the limit") for name in names], rules
    )
    made.columns = [column(1, **dict(zip(names, cells.values(), strict=True)))]
    made.columns[0].kind = "prefill"
    made.columns[0].levels = Levels(1, 4, 2, 3, host=3)
    made.columns[0].notes = [Note(Kind.LAST, "it ends – really · now")]
    made.columns[0].blocked = Blocked("x is next, but 3 blocks short", 1)
    for lines in (picture(made, ASCII, 80), frame(made, ASCII, 80, 60), story(made, ASCII, 80)):
        assert "\n".join(lines).isascii()


def test_the_legend_names_what_occurs_and_nothing_else() -> None:
    told = "\n".join(legend(steps(2), PLAIN, 80))
    assert "• decode" in told
    assert "preempted" not in told
    assert "▓ shared" in told


def test_the_bar_has_one_letter_per_block() -> None:
    assert pool_bar(Levels(2, 4, 3, 5), PLAIN, 80) == (
        "blocks  ▓▓████░░░·····  2 shared · 4 held · 3 cached · 5 blank  (of 14)"
    )


def test_the_bar_of_a_large_pool_is_scaled() -> None:
    bar = pool_bar(Levels(0, 500, 250, 250), PLAIN, 200)
    assert (bar.count("█"), bar.count("░")) == (32, 16)


@pytest.mark.parametrize("width", [40, 60, 100])
def test_the_bar_fits_the_width(width: int) -> None:
    assert len(pool_bar(Levels(0, 500, 250, 250), PLAIN, width)) <= width


def test_a_frame_shows_the_last_steps_that_fit() -> None:
    drawn = frame(steps(70), PLAIN, 60, 30)
    assert len(drawn) <= 29
    assert max(map(len, drawn)) <= 60
    shown = next(line for line in drawn if line.startswith("step  ")).split()[1:]
    assert shown[-1] == "70"
    assert len(shown) == (60 - 13) // 4
    assert drawn[0].startswith("step 70")


@pytest.mark.parametrize("height", [3, 10, 16, 24, 36, 60])
def test_a_frame_never_exceeds_the_screen(height: int) -> None:
    names = "abcdefghijklmnopqrst"
    made = history(column(1, **{name: Cell(Kind.DECODE, 1) for name in names}), names=names)
    above = ["title", "about", ""]
    drawn = frame(made, PLAIN, 100, height, above)
    assert len(drawn) < height
    assert ("title" in drawn) == (height >= 36)


def test_a_low_screen_shows_those_who_are_still_there() -> None:
    names = [f"r{n}" for n in range(20)]
    made = History([PlayedRequest(name, 4, 4, "") for name in names], RULES)
    made.columns = [column(1, r17=Cell(Kind.DECODE, 1), r3=Cell(Kind.WAITING))]
    drawn = "\n".join(frame(made, PLAIN, 100, 18))
    assert "r17 " in drawn
    assert "r3 " in drawn


def test_a_reason_is_told_once_with_how_long_it_held() -> None:
    columns = [column(n, a=Cell(Kind.WAITING)) for n in range(1, 5)]
    for one in columns[1:]:
        one.blocked = Blocked("a is next, but 3 blocks short", since=2)
    made = history(*columns)
    assert story(made, PLAIN, 80) == [
        "step 2    · blocked: a is next, but 3 blocks short (until step 4)"
    ]
    assert latest(made, PLAIN, 80) == [
        "step 4    · blocked: a is next, but 3 blocks short (since step 2)"
    ]


def test_a_number_that_can_change_was_so_at_first() -> None:
    columns = [column(n, a=Cell(Kind.WAITING)) for n in range(1, 5)]
    for one in columns[:3]:
        one.blocked = Blocked("a is next, but 3 blocks short", since=1, varies=True)
    columns[3].blocked = Blocked("b is next, but 2 blocks short", since=4, varies=True)
    assert story(history(*columns), PLAIN, 80) == [
        "step 1    · blocked: a is next, but 3 blocks short at first (until step 3)",
        "step 4    · blocked: b is next, but 2 blocks short",
    ]
    assert latest(history(*columns[:2]), PLAIN, 80) == [
        "step 2    · blocked: a is next, but 3 blocks short at first (since step 1)"
    ]


@pytest.mark.parametrize("width", [40, 60, 80])
def test_the_heading_fits_the_width(width: int) -> None:
    rules = replace(RULES, discipline="prefill_first", depth=2, host_blocks=20)
    made = history(column(1), rules=rules)
    drawn = heading(Heading("/a/path " * 12, "about it " * 12), made, PLAIN, width)
    assert max(map(len, drawn)) <= width
    limits = drawn[next(n for n, line in enumerate(drawn) if line.startswith("discipline")) : -1]
    assert all(line.endswith(" ·") for line in limits[:-1])
    assert " ".join(limits) == (
        "discipline prefill_first · policy fcfs · 4 slots · 32 tokens a step · 10 blocks of 8 · "
        "20 more on the host · planned up to 2 steps ahead"
    )


def test_a_wait_lasts_until_now() -> None:
    made = history(*(column(n, a=Cell(Kind.WAITING)) for n in (1, 2)))
    made.time = 0.07
    assert made.waited_s("a") == pytest.approx(0.05)
    assert made.until(-1).waited_s("a") == pytest.approx(0.02)
    assert made.waited_s("b") == 0


def test_notes_wrap_under_themselves() -> None:
    one = column(1, a=Cell(Kind.DECODE, 1))
    one.notes = [Note(Kind.PREFILL, "a word " * 12), Note(Kind.LAST, "short")]
    told = story(history(one), PLAIN, 60)
    assert told[0].startswith("step 1    ▶ a word")
    assert told[1].startswith(" " * 12 + "a word")
    assert told[2] == "          ■ short"
    assert max(map(len, told)) <= 60


def test_names_are_cut_and_filled_by_what_they_take_on_screen() -> None:
    assert fit("ab", 4) == "ab  "
    assert fit("abcdef", 4) == "abc…"
    assert fit("日本語", 5) == "日本…"
    assert letters("日本") == 4
    assert letters("e\u0301") == 1
