"""A message is a frozen dataclass like any other, but it takes less time to build one."""

import copy
import pickle
from dataclasses import FrozenInstanceError, fields, replace
from inspect import signature

import pytest

from paceline.core.events import message


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
