"""Measured times of steps, which a runner takes and a scheduler plans with."""

from dataclasses import dataclass
from math import isfinite
from typing import Protocol

from paceline.core.errors import ConfigError
from paceline.core.plan import Plan, StepResult

NS = 10**9  # nanoseconds of a second

Points = tuple[tuple[int, float], ...]  # positions and seconds, by rising positions


class TimedSteps(Protocol):
    """A runner, as far as those need it who measure its steps."""

    def launch(self, plan: Plan) -> None: ...

    def wait(self) -> StepResult: ...


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


@dataclass(frozen=True, slots=True)
class StepCost:
    """What one more position adds to a step, as it was measured. Whole numbers, so that sums are
    the same on every machine."""

    position_ns: int  # by itself
    read_ns: int = 0  # for each position before it, which its attention reads

    def __post_init__(self) -> None:
        if not (self.position_ns > 0 and self.read_ns >= 0):
            raise ConfigError(
                f"the cost of a position is {self.position_ns} ns and {self.read_ns} ns for each "
                "position before it; the first must be positive, and the second not negative"
            )

    @staticmethod
    def measured(near_s: float, far_s: float, positions: int, distance: int) -> "StepCost":
        """From the seconds of two steps of so many positions, of which the second one has
        `distance` more positions before it."""
        each = max(round(near_s * NS / positions), 1)
        return StepCost(each, max(round((far_s - near_s) * NS / (positions * distance)), 0))
