"""Rows of choices: a handle means one use of a row, and no other."""

from random import Random

import numpy as np
import pytest

from paceline.engine.choice_rows import FRONT_END_SHIFT, ROW, ChoiceRows
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
        assert [mixed[place][1] for place in new.place.tolist()] == found
        assert new.ids[:, 0].tolist() == new.place.tolist()
    assert len({one & ROW for one in gone}) < len(gone), "no row was used again"


def test_a_choice_that_has_ended_takes_no_tokens_and_its_siblings_do() -> None:
    rows = ChoiceRows[str]()
    handle = opened(rows, "a", 3)
    rows.end((handle & ROW) + 1)
    assert rows.new_tokens(delivery(handle, handle + 1, handle + 2)).place.tolist() == [0, 2]


def test_a_row_without_new_tokens_is_left_out() -> None:
    rows = ChoiceRows[str]()
    both = delivery(opened(rows, "a"), opened(rows, "b"))
    both.count[0] = 0
    assert rows.new_tokens(both).place.tolist() == [1]


def test_released_rows_keep_no_tokens() -> None:
    rows = ChoiceRows[str]()
    handle = opened(rows, "a")
    new = rows.new_tokens(delivery(handle))
    rows.tokens.append(new.row, new.ids, new.count)
    rows.release(handle, 1)
    assert opened(rows, "b") & ROW == handle & ROW
    assert rows.tokens.take(handle & ROW) == []
