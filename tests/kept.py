"""How much an object keeps, for tests that nothing piles up."""

from collections import deque
from collections.abc import Iterable
from typing import Any


def kept(thing: Any, *inside: type) -> int:
    """Items in the containers of an object, and in those of the objects in them that are of the
    types `inside`."""
    fields: Iterable[Any] = vars(thing).values() if hasattr(thing, "__dict__") else (thing,)
    return sum(items(one, inside) for one in fields)


def items(held: Any, inside: tuple[type, ...]) -> int:
    if isinstance(held, inside):
        return kept(held, *inside)
    if not isinstance(held, (dict, list, set, deque)):
        return 0
    values: Iterable[Any] = held.values() if isinstance(held, dict) else held
    return len(held) + sum(items(one, inside) for one in values)
