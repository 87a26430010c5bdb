"""Events are small frozen values, and a message takes little time to build."""

import copy
import pickle
from dataclasses import FrozenInstanceError, fields, replace
from inspect import signature
from typing import Any

import pytest

from paceline.core.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Happened,
    Moment,
    message,
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


@message(eq=True)
class Note:
    """A message that is checked."""

    text: str
    pages: int = 1
    tags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", self.text.strip())
        if self.pages < 1:
            raise ValueError(f"pages is {self.pages}")


@message()
class Stamp:
    """A message that is not."""

    country: str
    value: int = 5


def test_fields_are_given_by_place_or_by_name() -> None:
    note = Note("a", tags=("x",))
    assert (note.text, note.pages, note.tags) == ("a", 1, ("x",))
    assert [one.name for one in fields(Note)] == ["text", "pages", "tags"]
    assert list(signature(Note).parameters) == ["text", "pages", "tags"]
    with pytest.raises(TypeError, match="country"):
        Stamp()  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize("made", [Note("a"), Stamp("b"), replace(Note("a"), pages=2)])
def test_it_is_of_its_class_and_frozen(made: Note | Stamp) -> None:
    assert type(made) in (Note, Stamp)
    assert not hasattr(made, "__dict__")
    for name in type(made).__dataclass_fields__:
        with pytest.raises(FrozenInstanceError):
            setattr(made, name, None)
        with pytest.raises(FrozenInstanceError):
            delattr(made, name)


def test_it_is_checked_when_it_is_built() -> None:
    assert Note("  a ").text == "a"
    with pytest.raises(ValueError, match="pages is 0"):
        Note("a", 0)
    with pytest.raises(ValueError, match="pages is -1"):
        replace(Note("a"), pages=-1)


def test_those_with_eq_equal_by_value_and_others_only_themselves() -> None:
    assert Note("a") == Note("a ")
    assert hash(Note("a")) == hash(Note("a"))
    assert Note("a") != Note("b")
    assert Stamp("a") != Stamp("a")
    assert repr(Stamp("a")) == "Stamp(country='a', value=5)"


@pytest.mark.parametrize("copied", [copy.copy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_is_frozen_too(copied: type) -> None:
    note = copied(Note("a", 3))
    assert (type(note), note) == (Note, Note("a", 3))
    with pytest.raises(FrozenInstanceError):
        note.pages = 4
