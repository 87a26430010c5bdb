"""Embeddings of multimodal items: which are kept, who holds them, and where they are."""

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from paceline.core.arrays import I32


@dataclass(slots=True, eq=False)
class CachedItem:
    """The embeddings of one content."""

    rows: I32  # [length]; of the encoder store
    step: int  # that encodes it
    holders: int = 0
    is_confirmed: bool = False  # did that step come back?
    is_void: bool = False  # it was not encoded after all: it goes when no one holds it

    @property
    def length(self) -> int:
        return len(self.rows)


class EncoderCache:
    """Embeddings by the identity of their item, at most `capacity` of them.

        capacity  [ held by residents that have not passed the item | unheld, oldest first | free ]

    An item that is not held is kept until its rows are needed. Then those that have been unheld for
    longest go first. Rows may be written again at once, because a device runs steps in order.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.held = 0  # embeddings
        self._items: dict[str, CachedItem] = {}
        self._unheld: OrderedDict[str, None] = OrderedDict()
        self._free: list[int] = []  # rows that were used before
        self._fresh = 0  # rows from here on were never used

    def __contains__(self, identity: str) -> bool:
        return identity in self._items

    def __getitem__(self, identity: str) -> CachedItem:
        return self._items[identity]

    @property
    def room(self) -> int:
        """Embeddings that could be held besides those that are."""
        return self.capacity - self.held

    def is_held(self, identity: str) -> bool:
        return identity in self._items and self._items[identity].holders > 0

    def add(self, identity: str, length: int, step: int) -> I32:
        """Make room for an item that `step` encodes. Returns its rows."""
        assert identity not in self._items, f"{identity!r} is encoded twice"
        while len(self._free) + self.capacity - self._fresh < length:
            self._remove(next(iter(self._unheld)))
        again = min(length, len(self._free))
        new = range(self._fresh, self._fresh + length - again)
        rows = np.array([*(self._free.pop() for _ in range(again)), *new], np.int32)
        self._fresh += len(new)
        self._items[identity] = CachedItem(rows, step)
        self._unheld[identity] = None
        return rows

    def hold(self, identity: str) -> None:
        item = self._items[identity]
        if not item.holders:
            del self._unheld[identity]
            self.held += item.length
        item.holders += 1

    def drop(self, identity: str) -> None:
        """Undo one `hold`."""
        item = self._items[identity]
        item.holders -= 1
        if not item.holders:
            self.held -= item.length
            self._unheld[identity] = None
            if item.is_void:
                self._remove(identity)

    def confirm(self, identity: str, step: int) -> None:
        """The step came back that encodes an item; that may have gone since."""
        item = self._items.get(identity)
        if item is not None and item.step == step:
            item.is_confirmed = True

    def retract(self) -> None:
        """The steps in flight are void: what they encode is not kept."""
        for identity, item in list(self._items.items()):
            if not item.is_confirmed:
                item.is_void = True
                self.forget(identity)

    def forget(self, identity: str) -> None:
        """Do not find an item again, unless a sequence holds it."""
        if identity in self._unheld:
            self._remove(identity)

    def clear(self) -> None:
        """Forget all that is not held."""
        for identity in list(self._unheld):
            self._remove(identity)

    def _remove(self, identity: str) -> None:
        del self._unheld[identity]
        self._free += self._items.pop(identity).rows[::-1].tolist()

    def check(self) -> None:
        rows = [row for item in self._items.values() for row in item.rows.tolist()]
        assert sorted([*rows, *self._free]) == list(range(self._fresh)), "a row is lost or doubled"
        assert self._fresh <= self.capacity
        held = {identity: one for identity, one in self._items.items() if one.holders}
        assert self.held == sum(one.length for one in held.values())
        assert not held.keys() & self._unheld.keys()
        assert held.keys() | self._unheld.keys() == self._items.keys()
        assert not any(self._items[identity].is_void for identity in self._unheld)
