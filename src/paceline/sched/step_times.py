"""How long a step takes on the device at hand, by its number of positions."""

from dataclasses import dataclass
from math import isfinite

import numpy as np
import numpy.typing as npt

from paceline.core.errors import ConfigError

F64 = npt.NDArray[np.float64]
Points = tuple[tuple[int, float], ...]  # positions and seconds, by rising positions


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds that steps took when they were measured."""

    plain: Points  # rows of one position each
    drafted: Points  # rows with drafts, all positions counted
    least: Points = ()  # by rows, of a step with a single draft; empty: positions alone count

    def __post_init__(self) -> None:
        named = {"plain": self.plain, "drafted": self.drafted}
        named |= {"least": self.least} if self.least else {}
        for name, points in named.items():
            sizes = [size for size, _ in points]
            rising = bool(sizes) and sizes == sorted(set(sizes)) and sizes[0] > 0
            if not rising or not all(isfinite(taken) and taken > 0 for _, taken in points):
                raise ConfigError(
                    f"{name} step times are {points}; they are pairs of positions, which rise, "
                    f"and of positive seconds"
                )


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

    def at(self, positions: npt.NDArray[np.int64]) -> F64:
        """Seconds of steps with so many positions."""
        line = np.searchsorted(self._size, positions, side="right") - 1
        line = np.clip(line, 0, len(self._slope) - 1)
        seconds: F64 = self._seconds[line] + self._slope[line] * (positions - self._size[line])
        return seconds

    def one(self, positions: int) -> float:
        return float(self.at(np.array([positions]))[0])
