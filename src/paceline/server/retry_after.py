"""Measures how fast requests end, for `Retry-After`."""

from collections import deque
from collections.abc import Callable
from math import ceil
from time import monotonic

REMEMBERED_ENDS = 64
LONGEST_WAIT_S = 60


class RequestRate:
    """The rate at which requests end, from the times of the latest ends.

    It is measured up to now, not up to the latest end, so that it falls while no request ends.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._ends: deque[float] = deque(maxlen=REMEMBERED_ENDS)

    def ended(self) -> None:
        self._ends.append(self._clock())

    def wait_s(self, ahead: int) -> int:
        """Whole seconds in which `ahead` requests end, at least one and at most a minute."""
        if not self._ends:
            return 1
        each = (self._clock() - self._ends[0]) / len(self._ends)
        return min(max(ceil(each * ahead), 1), LONGEST_WAIT_S)
