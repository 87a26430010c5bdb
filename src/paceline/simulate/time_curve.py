"""A piecewise linear function: seconds by how much there is of something."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from paceline.core.errors import ConfigError

Point = tuple[float, float]  # an amount and seconds
MOST_KNOWN = 4096  # a step has one of few sizes, and is asked for often


@dataclass(frozen=True, slots=True)
class Hinge:
    """From `knee` on, each further unit costs `slope` seconds more."""

    knee: float
    slope: float


class TimeCurve:
    """Straight lines between points. Beyond the last point, the last line goes on.

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
