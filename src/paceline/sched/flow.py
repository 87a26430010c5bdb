"""The waiting sequences of one flow, in their order."""

import heapq
from collections import deque
from collections.abc import Hashable, Iterator
from itertools import chain, count
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from paceline.core.request import Sequence

Order = tuple[tuple[float, ...], int, tuple[float, ...], int]
T = TypeVar("T", bound=tuple[Any, ...])


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

    def in_order(self) -> Iterator[Place]:
        """From the first on; to read a few of very many takes little time."""
        heaped = (place for _, _, place in ascending(self._heap))
        return heapq.merge(self._row, heaped, key=attrgetter("order"))

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


def ascending(heap: list[T]) -> Iterator[T]:
    """The items of a heap from the smallest on, without changing it."""
    front = [(heap[0], 0)] if heap else []
    while front:
        item, place = heapq.heappop(front)
        yield item
        for child in (2 * place + 1, 2 * place + 2):
            if child < len(heap):
                heapq.heappush(front, (heap[child], child))
