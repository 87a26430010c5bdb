"""Measures how fast requests end, for `Retry-After`."""

from collections.abc import Callable
from math import ceil
from time import monotonic

import numpy as np

from paceline.core.arrays import F64

REMEMBERED_ENDS = 64
LONGEST_WAIT_S = 60


class RequestRate:
    """The rate at which requests end, from the times of the latest ends of all processes.

    It is measured up to now, not up to the latest end, so that it falls while no request ends.
    """

    SIZE = 1 + REMEMBERED_ENDS  # the number of ends so far, and the times of the latest

    def __init__(
        self, clock: Callable[[], float] = monotonic, rows: F64 | None = None, row: int = 0
    ) -> None:
        self._clock = clock
        self._rows = np.zeros((1, self.SIZE)) if rows is None else rows  # [processes, SIZE]
        self._own = self._rows[row]

    def ended(self) -> None:
        self._own[1 + int(self._own[0]) % REMEMBERED_ENDS] = self._clock()
        self._own[0] += 1

    def wait_s(self, ahead: int) -> int:
        """Whole seconds in which `ahead` requests end, at least one and at most a minute."""
        times = self._rows[:, 1:]
        latest = np.sort(times[times > 0.0])[-REMEMBERED_ENDS:]
        if not len(latest):
            return 1
        each = (self._clock() - float(latest[0])) / len(latest)
        return min(max(ceil(each * ahead), 1), LONGEST_WAIT_S)
