"""KV events of what a connector keeps."""

from collections.abc import Sequence

from paceline.core.events import BlockRemoved, BlockStored, CacheEvent, Medium

REMEMBERED = 1 << 16  # blocks: a store ends before so many others begin


class TierEvents:
    """Reports content of one medium: each block once when it comes, and once when it goes.

    A connector names keys alone, so what an event says of a block is noted when it is stored.
    Blocks of the first group with full attention are reported, as on the device. What was there
    before the engine started is not.
    """

    def __init__(self, medium: Medium, events: list[CacheEvent]) -> None:
        self.medium: Medium = medium
        self._events = events
        self._stored: dict[bytes, BlockStored] = {}  # the latest
        self._reported: set[bytes] = set()

    def store(self, blocks: Sequence[BlockStored]) -> None:
        """The connector is about to store these."""
        for one in blocks:
            self._stored.pop(one.key, None)  # the latest come last
            self._stored[one.key] = one
        while len(self._stored) > REMEMBERED:
            del self._stored[next(iter(self._stored))]

    def changed(self, keys: Sequence[bytes], is_there: bool) -> None:
        for key in keys:
            stored = self._stored.get(key)
            if is_there and stored is not None and key not in self._reported:
                self._reported.add(key)
                self._events.append(stored)
            elif not is_there and key in self._reported:
                self._reported.remove(key)
                self._events.append(BlockRemoved(key, self.medium))

    def clear(self) -> None:
        """All content is forgotten, which the cache reports for all media."""
        self._stored.clear()
        self._reported.clear()
