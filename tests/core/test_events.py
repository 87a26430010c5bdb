"""Events are small values: equal if they say the same, and never changed."""

from typing import Any, get_args

import pytest

from paceline.core.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    CacheEvent,
    Happened,
    Moment,
)

STORED = BlockStored(key=b"k", parent=None, tokens=(1, 2), adapter="")


@pytest.mark.parametrize(
    ("one", "same", "other"),
    [
        (STORED, BlockStored(b"k", None, (1, 2), ""), BlockStored(b"k", b"p", (1, 2), "")),
        (BlockRemoved(b"k"), BlockRemoved(b"k"), BlockRemoved(b"j")),
        (AllBlocksCleared(), AllBlocksCleared(), BlockRemoved(b"k")),
        (
            Moment(Happened.SUBMITTED, 1.0, 2),
            Moment(Happened.SUBMITTED, 1.0, 2, amount=0, cause=""),
            Moment(Happened.SUBMITTED, 1.0, 3),
        ),
    ],
)
def test_events_are_equal_if_they_say_the_same(one: Any, same: Any, other: Any) -> None:
    assert one == same
    assert hash(one) == hash(same)
    assert one != other


@pytest.mark.parametrize(
    ("event", "field"),
    [(STORED, "key"), (BlockRemoved(b"k"), "key"), (Moment(Happened.PARKED, 0.0, 0), "time")],
)
def test_events_are_never_changed(event: Any, field: str) -> None:
    with pytest.raises(AttributeError):
        setattr(event, field, None)


def test_cache_events_are_exactly_three() -> None:
    assert set(get_args(CacheEvent)) == {BlockStored, BlockRemoved, AllBlocksCleared}


def test_each_turn_of_a_life_has_a_word_of_its_own() -> None:
    assert len({happened.value for happened in Happened}) == len(Happened)
    assert Happened.FIRST_TOKEN.value == "first token"
