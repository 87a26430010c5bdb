"""What it costs to read contexts, by the number of rows that read them."""

from collections.abc import Sequence
from math import isfinite

import numpy as np

from paceline.core.errors import ConfigError

Point = tuple[float, float, float]  # rows, seconds per token, seconds per token of excess


class RowRates:
    """Seconds per token that rows read, and per token by which the longest exceeds their mean.

    Both are given at several numbers of rows, with straight lines between them, and level lines
    before the first and after the last. Kernels share out contexts in other ways for few rows and
    for many: where a context is not split, all rows wait for the longest.
    """

    __slots__ = ("_found", "points")

    def __init__(self, points: Sequence[Sequence[float]]) -> None:
        self.points = tuple(checked(points))
        self._found: dict[int, tuple[float, float]] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RowRates) and self.points == other.points

    def __hash__(self) -> int:
        return hash(self.points)

    def __repr__(self) -> str:
        return f"RowRates({[list(point) for point in self.points]})"

    def at(self, rows: int) -> tuple[float, float]:
        """The two rates of so many rows."""
        if not self.points:
            return 0.0, 0.0
        if rows not in self._found:
            given, *rates = zip(*self.points, strict=True)
            token, excess = (float(np.interp(rows, given, rate)) for rate in rates)
            self._found[rows] = token, excess
        return self._found[rows]


def checked(points: Sequence[Sequence[float]]) -> list[Point]:
    """The points, if their rows rise and nothing is negative."""
    try:
        found = [(float(rows), float(token), float(excess)) for rows, token, excess in points]
    except (TypeError, ValueError):
        raise ConfigError(
            f"the rates of reading are {points!r}; each must be rows and two numbers"
        ) from None
    rows = [one[0] for one in found]
    values = [value for one in found for value in one]
    if rows != sorted(set(rows)) or not all(isfinite(one) and one >= 0 for one in values):
        raise ConfigError(
            f"the rates of reading are {points!r}; rows must rise, and nothing may be negative"
        )
    return found


NO_RATES = RowRates([])
