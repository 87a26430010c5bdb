"""What it costs to read contexts, by the number of rows that read them."""

from collections.abc import Sequence
from math import isfinite, sqrt

import numpy as np

from paceline.core.errors import ConfigError

Rates = tuple[float, float, float]  # rows, seconds per token, seconds per token of the longest


class RowRates:
    """Seconds per token that all rows read, and seconds per token of the longest row.

    Reading takes as long as the larger of the two, roughly: memory limits all rows together, and
    where a context is not split, all rows wait for the longest. Both rates are given at several
    numbers of rows, with straight lines between them, and level lines before the first and after
    the last: kernels share out contexts in other ways for few rows and for many.
    """

    __slots__ = ("_found", "points")

    def __init__(self, points: Sequence[Sequence[float]]) -> None:
        self.points = tuple(checked_rates(points))
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
            token, longest = (float(np.interp(rows, given, rate)) for rate in rates)
            self._found[rows] = token, longest
        return self._found[rows]

    def seconds(self, rows: int, tokens: float, longest: float) -> float:
        """Of so many rows that read so many tokens."""
        per_token, per_longest = self.at(rows)
        return larger(per_token * tokens, per_longest * longest)


def larger(one: float, other: float) -> float:
    """The larger of two times, and a little more where they are close: the fourth root of the sum
    of fourth powers."""
    one, other = one * one, other * other
    return sqrt(sqrt(one * one + other * other))


def checked_rates(points: Sequence[Sequence[float]]) -> list[Rates]:
    """The points, if their rows rise and nothing is negative."""
    try:
        found = [(float(rows), float(token), float(longest)) for rows, token, longest in points]
    except (TypeError, ValueError, OverflowError):
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
