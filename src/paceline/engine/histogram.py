"""Counts of values by size."""

from bisect import bisect_left
from typing import cast

import numpy as np

from paceline.core.arrays import F64, I32


class Histogram:
    """`counts[i]` values lie in (bounds[i - 1], bounds[i]]; the last count has no upper bound.

    `cells` holds the counts, and after them the sum of all values. It may be a part of a larger
    array, so that figures of several processes can be added up.
    """

    def __init__(self, bounds: tuple[float, ...], cells: F64 | None = None) -> None:
        self.bounds = bounds
        self._edges = np.array(bounds)
        self._cells = np.zeros(self.cells_of(bounds)) if cells is None else cells
        # The same cells, faster for one at a time.
        self._single = cast("memoryview[float]", self._cells.data)

    @staticmethod
    def cells_of(bounds: tuple[float, ...]) -> int:
        """The number of cells that a histogram needs."""
        return len(bounds) + 2

    def observe(self, value: float, times: int = 1) -> None:
        self._single[bisect_left(self.bounds, value)] += times
        self._single[-1] += value * times

    def observe_all(self, values: F64, times: I32 | None = None) -> None:
        """Count each of many values, once or so many times."""
        if len(values) == 1:
            self.observe(float(values[0]), 1 if times is None else int(times[0]))
            return
        places = np.searchsorted(self._edges, values)
        self._cells[:-1] += np.bincount(places, times, minlength=len(self.bounds) + 1)
        self._cells[-1] += values.sum() if times is None else values @ times

    @property
    def counts(self) -> list[int]:
        return self._cells[:-1].astype(np.int64).tolist()

    @property
    def total(self) -> float:
        """The sum of all values."""
        return float(self._cells[-1])

    @property
    def count(self) -> int:
        return int(self._cells[:-1].sum())

    def copy(self) -> "Histogram":
        return Histogram(self.bounds, self._cells.copy())
