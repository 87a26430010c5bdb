"""What an engine remembers of a store that others write to and remove from too."""

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

KNOWN = 1 << 17  # keys that are remembered
FRESH_S = 1.0  # for how long missing content is believed to be missing
USED_S = 60.0  # how often the use of content is noted in the store


class KnownContent:
    """Keys of content that was seen, that was not there, and that is being looked for.

    Content that was seen may be gone. Times are in seconds.
    """

    def __init__(self) -> None:
        self._there: OrderedDict[bytes, float] = OrderedDict()  # when its use was last noted
        self._missing: OrderedDict[bytes, float] = OrderedDict()  # when it was looked for
        self._sought: set[bytes] = set()

    def leading(self, keys: Sequence[bytes]) -> int:
        """How many of the first keys are there."""
        return next((at for at, key in enumerate(keys) if key not in self._there), len(keys))

    def is_missing(self, key: bytes, now: float) -> bool:
        return key in self._missing and now - self._missing[key] < FRESH_S

    def seek(self, key: bytes) -> bool:
        """Content is to be looked for. False if that is being done."""
        is_new = key not in self._sought
        self._sought.add(key)
        return is_new

    def found(self, keys: Sequence[bytes], number: int, now: float) -> None:
        """The first `number` of the keys that were sought from the first one on are there."""
        self._sought.discard(keys[0])
        self.add(keys[:number], -USED_S)
        if number < len(keys):
            remember(self._missing, keys[number], now)

    def use(self, keys: Sequence[bytes], now: float) -> tuple[bytes, ...]:
        """Content is in use. Returns the keys whose use was not noted for some time."""
        unnoted = tuple(key for key in keys if now - self._there[key] >= USED_S)
        for key in keys:
            self._there.move_to_end(key)
        self._there |= dict.fromkeys(unnoted, now)
        return unnoted

    def add(self, keys: Sequence[bytes], now: float) -> None:
        for key in keys:
            remember(self._there, key, now)
            self._missing.pop(key, None)

    def drop(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            self._there.pop(key, None)

    def clear(self) -> list[bytes]:
        """Forget all. Returns the keys of content that was seen."""
        known = list(self._there)
        self._there.clear()
        self._sought.clear()
        return known


def remember(known: OrderedDict[K, V], key: K, value: V) -> None:
    """Keep a value, and drop the oldest one if there are too many."""
    known[key] = value
    known.move_to_end(key)
    if len(known) > KNOWN:
        known.popitem(last=False)
