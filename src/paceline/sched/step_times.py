"""How long a step takes on the device at hand, by its number of positions."""

import numpy as np

from paceline.core.arrays import F64, I64
from paceline.core.step_times import Points


class Curve:
    """Seconds by positions: straight lines between points, and the last one goes on.

    A larger step never takes less: where a measurement says so, it is noise. The arithmetic is
    the same to the bit on every machine, so that a replay decides as the recorded run did.
    """

    def __init__(self, points: Points) -> None:
        first = [(0, points[0][1])] if points[0][0] > 0 else []
        sizes, seconds = zip(*first, *points, strict=True)
        self._size: F64 = np.array(sizes, np.float64)
        self._seconds: F64 = np.maximum.accumulate(np.array(seconds, np.float64))
        self._slope: F64 = np.diff(self._seconds) / np.diff(self._size)
        if not len(self._slope):
            self._slope = np.zeros(1)

    def at(self, positions: I64) -> F64:
        """Seconds of steps with so many positions."""
        line = np.searchsorted(self._size, positions, side="right") - 1
        line = np.clip(line, 0, len(self._slope) - 1)
        seconds: F64 = self._seconds[line] + self._slope[line] * (positions - self._size[line])
        return seconds

    def one(self, positions: int) -> float:
        return float(self.at(np.array([positions]))[0])
