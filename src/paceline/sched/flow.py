"""The waiting sequences of one flow, in their order."""

import heapq
from collections import deque
from collections.abc import Hashable, Iterator
from itertools import chain, count
from typing import NamedTuple

from paceline.core.request import Sequence

Order = tuple[tuple[float, ...], int, tuple[float, ...], int]


class Place(NamedTuple):
    """Where a sequence stands in its flow. Superseded, not moved, when its rank changes."""

    order: Order
    sequence: Sequence
    flow: Hashable


class Flow:
    """Waiting sequences that keep their relative order, such as those of one tenant.

    A place that comes in order, as nearly all do, is appended to a row; one that goes before the
    last of the row is pushed onto a heap.
    """

    def __init__(self) -> None:
        self._row: deque[Place] = deque()
        self._heap: list[tuple[Order, int, Place]] = []
        self._entries = count()  # so that two sequences are never compared

    def __len__(self) -> int:
        return len(self._row) + len(self._heap)

    def __iter__(self) -> Iterator[Place]:
        return chain(self._row, (place for _, _, place in self._heap))

    @property
    def first(self) -> Place:
        return self._heap[0][-1] if self._is_heaped() else self._row[0]

    def push(self, place: Place) -> None:
        if not self._row or self._row[-1].order <= place.order:
            self._row.append(place)
        else:
            heapq.heappush(self._heap, (place.order, next(self._entries), place))

    def pop(self) -> None:
        """Remove the first."""
        if self._is_heaped():
            heapq.heappop(self._heap)
        else:
            self._row.popleft()

    def _is_heaped(self) -> bool:
        """Is the first one on the heap?"""
        if not self._heap:
            return False
        return not self._row or self._heap[0][0] < self._row[0].order
