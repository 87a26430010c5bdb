"""Which embeddings of images are kept, who holds them, and in which rows they are."""

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from paceline.core.arrays import I32


@dataclass(slots=True, eq=False)
class CachedImage:
    """The embeddings of one image."""

    rows: I32  # [length]; of the encoder store
    step: int  # that encodes it
    holders: int = 0
    is_confirmed: bool = False  # whether that step has been committed
    is_void: bool = False  # its step failed: it is removed when no sequence holds it

    @property
    def length(self) -> int:
        return len(self.rows)


class EncoderCache:
    """The embeddings of images by identity, at most `capacity` of them.

        capacity  [ held by residents that have not passed the image | unheld, oldest first | free ]

    An image that is not held is kept until its rows are needed. Then the images that have been
    unheld for longest are removed first. Rows may be overwritten at once, because a device runs
    steps in order.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.held = 0  # embeddings
        self._images: dict[str, CachedImage] = {}
        self._unheld: OrderedDict[str, None] = OrderedDict()
        self._free: list[int] = []  # rows that were used before
        self._fresh = 0  # rows from here on were never used

    def __contains__(self, identity: str) -> bool:
        return identity in self._images

    def __getitem__(self, identity: str) -> CachedImage:
        return self._images[identity]

    @property
    def room(self) -> int:
        """Embeddings that could be held in addition to those that are held."""
        return self.capacity - self.held

    def is_held(self, identity: str) -> bool:
        return identity in self._images and self._images[identity].holders > 0

    def add(self, identity: str, length: int, step: int) -> I32:
        """Make room for an image that `step` encodes. Returns its rows."""
        assert identity not in self._images, f"{identity!r} is encoded twice"
        while len(self._free) + self.capacity - self._fresh < length:
            self._remove(next(iter(self._unheld)))
        again = min(length, len(self._free))
        new = range(self._fresh, self._fresh + length - again)
        rows = np.array([*(self._free.pop() for _ in range(again)), *new], np.int32)
        self._fresh += len(new)
        self._images[identity] = CachedImage(rows, step)
        self._unheld[identity] = None
        return rows

    def hold(self, identity: str) -> None:
        image = self._images[identity]
        if not image.holders:
            del self._unheld[identity]
            self.held += image.length
        image.holders += 1

    def drop(self, identity: str) -> None:
        """Undo one `hold`."""
        image = self._images[identity]
        image.holders -= 1
        if not image.holders:
            self.held -= image.length
            self._unheld[identity] = None
            if image.is_void:
                self._remove(identity)

    def confirm(self, identity: str, step: int) -> None:
        """The step that encodes an image is committed. The image may have been removed since."""
        image = self._images.get(identity)
        if image is not None and image.step == step:
            image.is_confirmed = True

    def retract(self) -> None:
        """The steps in flight failed: the images that they encode are not kept."""
        for identity, image in list(self._images.items()):
            if not image.is_confirmed:
                image.is_void = True
                self.forget(identity)

    def forget(self, identity: str) -> None:
        """Remove an image unless a sequence holds it."""
        if identity in self._unheld:
            self._remove(identity)

    def clear(self) -> None:
        """Remove all images that are not held."""
        for identity in list(self._unheld):
            self._remove(identity)

    def _remove(self, identity: str) -> None:
        del self._unheld[identity]
        self._free += self._images.pop(identity).rows[::-1].tolist()

    def check(self) -> None:
        rows = [row for image in self._images.values() for row in image.rows.tolist()]
        assert sorted([*rows, *self._free]) == list(range(self._fresh)), "a row is lost or doubled"
        assert self._fresh <= self.capacity
        held = {identity: one for identity, one in self._images.items() if one.holders}
        assert self.held == sum(one.length for one in held.values())
        assert not held.keys() & self._unheld.keys()
        assert held.keys() | self._unheld.keys() == self._images.keys()
        assert not any(self._images[identity].is_void for identity in self._unheld)
