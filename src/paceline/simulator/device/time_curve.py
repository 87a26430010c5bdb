"""Seconds by how much there is of something, and rates by rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, sqrt

import numpy as np

from paceline.core.errors import ConfigError

Point = tuple[float, float]  # an amount and seconds
MOST_KNOWN = 4096  # a step has one of few sizes, and is asked for often


@dataclass(frozen=True, slots=True)
class Hinge:
    """From `knee` on, each further unit costs `slope` seconds more."""

    knee: float
    slope: float


class TimeCurve:
    """Straight lines between points. The last line extends beyond the last point.

    Nothing costs nothing: the seconds of 0 are 0. Below the first point the curve is level, so
    `[[1, 0.5]]` is a fixed cost, and `[[0, 0], [1, 0.5]]` a cost per unit.

        seconds          /
          |        _____/ <- a knee: arithmetic takes longer than memory
          |_______/
          +------------------- positions
    """

    __slots__ = ("_first", "_hinges", "_known", "points")

    def __init__(self, points: Sequence[Sequence[float]]) -> None:
        self.points = tuple(checked(points))
        self._first = self.points[0][1]
        hinges: list[Hinge] = []
        slope = 0.0
        for (x, y), (next_x, next_y) in zip(self.points, self.points[1:], strict=False):
            steeper = (next_y - y) / (next_x - x) - slope
            hinges.append(Hinge(x, steeper))
            slope += steeper
        self._hinges = tuple(hinges)
        self._known: dict[float, float] = {}  # seconds of amounts that were asked for

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TimeCurve) and self.points == other.points

    def __hash__(self) -> int:
        return hash(self.points)

    def __repr__(self) -> str:
        return f"TimeCurve({[list(point) for point in self.points]})"

    def __call__(self, amount: float) -> float:
        """The seconds of an amount."""
        if amount <= 0:
            return 0.0
        if (known := self._known.get(amount)) is not None:
            return known
        seconds = self._first
        for hinge in self._hinges:
            if amount > hinge.knee:
                seconds += (amount - hinge.knee) * hinge.slope
        if len(self._known) < MOST_KNOWN:
            self._known[amount] = seconds
        return seconds


def checked(points: Sequence[Sequence[float]]) -> list[Point]:
    """The points, if they are pairs whose amounts rise and whose seconds do not fall."""
    try:
        pairs = [(float(x), float(y)) for x, y in points]
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(f"a curve is {points!r}; it must be pairs of numbers") from None
    amounts, seconds = [x for x, _ in pairs], [y for _, y in pairs]
    rises = bool(pairs) and amounts == sorted(set(amounts)) and seconds == sorted(seconds)
    if not rises or min(amounts[0], seconds[0]) < 0 or not all(map(isfinite, amounts + seconds)):
        raise ConfigError(
            f"a curve is {points!r}; its amounts must rise from 0 or more, and its seconds must "
            "not fall"
        )
    return pairs


NOTHING = TimeCurve([[0.0, 0.0]])


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
