"""Rows of choices and their tokens: a handle means one use of a row, and no other."""

from random import Random

import numpy as np
import pytest

from paceline.engine.choice_rows import (
    FIRST_PAGES,
    FRONT_END_SHIFT,
    PAGE,
    ROW,
    ChoiceRows,
    TokenPages,
)
from paceline.engine.loop.messages import Delivery


def delivery(*handles: int) -> Delivery:
    rows = len(handles)
    ids = np.arange(rows, dtype=np.int32).reshape(rows, 1)
    return Delivery(0.0, np.array(handles, np.int64), ids, np.ones(rows, np.int32))


def opened(rows: ChoiceRows[str], owner: str, width: int = 1) -> int:
    handle = rows.next_handle(width)
    rows.open([owner] * width, handle, width, deferred=True)
    return handle


@pytest.mark.parametrize("seed", range(6))
def test_tokens_reach_their_owner_and_late_ones_nobody(seed: int) -> None:
    random, rows = Random(seed), ChoiceRows[str](3)
    live: dict[int, tuple[str, int]] = {}
    gone: list[int] = []
    for number in range(400):
        if random.random() < 0.55 or not live:
            width = random.choice([1, 1, 2, 5])
            handle = opened(rows, str(number), width)
            assert handle >> FRONT_END_SHIFT == 3
            live[handle] = str(number), width
        else:
            handle = random.choice(list(live))
            rows.release(handle, live.pop(handle)[1])
            gone.append(handle)
        named = [
            (one + child, owner) for one, (owner, width) in live.items() for child in range(width)
        ]
        old = random.sample(gone, min(len(gone), 9))
        mixed = [*named, *((one, "") for one in old), (-1, "")]
        random.shuffle(mixed)
        new = rows.new_tokens(delivery(*(one for one, _ in mixed)))
        found = [rows.owner(row) for row in new.row.tolist()]
        assert found == [owner for _, owner in mixed if owner]
        assert [mixed[index][1] for index in new.offset.tolist()] == found
        assert new.ids[:, 0].tolist() == new.offset.tolist()
    assert len({one & ROW for one in gone}) < len(gone), "no row was used again"


def test_a_choice_that_has_ended_takes_no_tokens_and_its_siblings_do() -> None:
    rows = ChoiceRows[str]()
    handle = opened(rows, "a", 3)
    rows.end((handle & ROW) + 1)
    assert rows.new_tokens(delivery(handle, handle + 1, handle + 2)).offset.tolist() == [0, 2]


def test_a_row_without_new_tokens_is_left_out() -> None:
    rows = ChoiceRows[str]()
    both = delivery(opened(rows, "a"), opened(rows, "b"))
    both.count[0] = 0
    assert rows.new_tokens(both).offset.tolist() == [1]


def test_released_rows_keep_no_tokens() -> None:
    rows = ChoiceRows[str]()
    handle = opened(rows, "a")
    new = rows.new_tokens(delivery(handle))
    rows.tokens.append(new.row, new.ids, new.count)
    rows.release(handle, 1)
    assert opened(rows, "b") & ROW == handle & ROW
    assert rows.tokens.take(handle & ROW) == []


EVENTS = [*[""] * 7, "come", "leave", "leave", "end", "read"]


@pytest.mark.parametrize("seed", range(4))
def test_a_delivery_that_repeats_another_leaves_what_any_other_would(seed: int) -> None:
    """Steady deliveries share their handles. Between them, requests come, end, leave and get a
    reader, which the engine may learn later."""
    random, repeats = Random(seed), 0
    shared, copied = pair = ChoiceRows[str](), ChoiceRows[str]()
    live: list[int] = []
    odd: list[int] = []  # those of them that have ended or have a reader, which leave first
    handles = np.empty(0, np.int64)
    for turn in range(400):
        event = random.choice(EVENTS) if live else "come"
        one = odd[-1] if event == "leave" and odd else random.choice(live or [-1])
        match event:
            case "come":
                one, _ = (opened(rows, "") for rows in pair)
                live.append(one)
            case "leave":
                live.remove(one)
                odd = [other for other in odd if other != one]
                for rows in pair:
                    rows.release(one, 1)
            case "end" | "read":
                odd.append(one)
                for rows in pair:
                    (rows.end if event == "end" else rows.undefer)(one & ROW)
        if event and random.random() < 0.6:
            handles = np.array(live, np.int64)
        ids = np.array([random.randrange(99) for _ in handles], np.int32)[:, None]
        found: list[list[int]] = []
        for rows, own in ((shared, handles), (copied, handles.copy())):
            given = Delivery(float(turn), own, ids, np.ones(len(own), np.int32))
            if (gap_s := rows.repeat(given)) is None:
                new = rows.new_tokens(given)
                rows.seen_at[new.row] = given.time
                found.append(rows.defer(given, new).row.tolist())
            else:
                assert (gap_s, rows) == (1.0, shared)
                found.append([])
                repeats += 1
        assert found[0] == found[1], "the same rows have a reader"
    assert repeats > 20
    for rows in pair:
        rows.new_tokens(delivery())  # of no row
    for row in range(len(shared.handle)):
        assert shared.tokens.take(row) == copied.tokens.take(row)
    np.testing.assert_array_equal(shared.seen_at, copied.seen_at)


@pytest.mark.parametrize("seed", range(8))
def test_rows_return_their_tokens_whatever_others_do(seed: int) -> None:
    random = Random(seed)
    pages, rows = TokenPages(), 40
    pages.grow(rows)
    expected: list[list[int]] = [[] for _ in range(rows)]
    for _ in range(400):
        chosen = random.sample(range(rows), random.randint(1, rows))
        width = random.choice([1, 1, 3])
        ids = np.array([[random.randrange(1000) for _ in range(width)] for _ in chosen], np.int32)
        count = np.array([random.randint(0, width) for _ in chosen], np.int32)
        pages.append(np.array(chosen), ids, count)
        for row, new, most in zip(chosen, ids.tolist(), count.tolist(), strict=True):
            expected[row] += new[:most]
        if random.random() < 0.1:
            row = random.randrange(rows)
            assert pages.take(row) == expected[row]
            expected[row] = []
    for row in range(rows):
        assert pages.has_tokens(row) == bool(expected[row])
        assert pages.take(row) == expected[row]
        assert pages.take(row) == []


def test_pages_are_used_again() -> None:
    pages = TokenPages()
    pages.grow(2)
    one, ids = np.array([1]), np.array([[7]], np.int32)
    for _ in range(3):
        for _ in range(FIRST_PAGES * PAGE):
            pages.append(one, ids, np.ones(1, np.int32))
        assert len(pages.take(1)) == FIRST_PAGES * PAGE
    assert len(pages._cells) == FIRST_PAGES * PAGE
