"""Times the points of a grid within a time, and those again during which the machine was busy."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from paceline.core.errors import ConfigError
from paceline.simulator.calibration.grid import DecodePoint, MixedPoint, Point, contexts_of
from paceline.simulator.calibration.step_meter import FEWEST as STEPS
from paceline.simulator.calibration.step_meter import Observation, StepMeter

log = logging.getLogger(__name__)

FEWEST, FEWEST_HELD_BACK = 4, 1  # points that a fit needs, and those that say how good it is
TIMES = 3  # that each is timed, if there is time
MOST_TIMES = 8  # the same of those that remain in doubt
ALIKE = 1.1  # the second fastest run of a point, by the fastest one
BUSY = 0.05  # of a run: if threads wait longer for a core, other programs use the machine
BEFORE_LAST = 4  # points that are timed before the largest one
LARGEST = 1 / 6  # of the time, for one point at most


@dataclass(frozen=True, slots=True)
class Timed:
    """The points of one kind that there was time for.

    kept, held_back   those that the fit sees, and those that it does not see
    left_out          points, for lack of time
    busy              points of which no run had the machine to itself
    """

    kept: Sequence[Observation]
    held_back: Sequence[Observation]
    left_out: int
    busy: int


class Survey:
    """Times each point a few times. Those that are left out are spread over the grid, and are the
    largest ones where a single one would take much of the time."""

    def __init__(self, meter: StepMeter, points: Iterable[Point], limit_s: float) -> None:
        self._meter, self._limit_s = meter, limit_s
        self._end = meter.clock() + limit_s
        self._points = spread(sorted(points, key=cost))
        self._runs: dict[Point, list[Observation]] = {}
        self._unit_s = 0.0  # of a step, per unit of cost: the least that was seen

    def timed(self) -> Timed:
        for turn in range(MOST_TIMES):
            wanted = [one for one in self._points if turn < TIMES or not self._is_settled(one)]
            for point in sorted(wanted, key=self._is_settled):
                if self._takes_s(point) <= min(self._limit_s * LARGEST, self._left_s):
                    self._time(point)
        self._fill_up(FEWEST, is_held_back=False)
        self._fill_up(FEWEST_HELD_BACK, is_held_back=True)
        return self._found()

    @property
    def _left_s(self) -> float:
        return self._end - self._meter.clock()

    def _takes_s(self, point: Point) -> float:
        return (1 + STEPS) * cost(point) * self._unit_s

    def _is_settled(self, point: Point) -> bool:
        """Do two runs agree that had the machine to themselves? A run not yet made leaves doubt."""
        steps = sorted(one.step_s for one in quiet(self._runs.get(point, ())))
        return len(steps) > 1 and steps[1] <= ALIKE * steps[0]

    def _time(self, point: Point) -> None:
        one = self._meter.measure(point.parts, most=point.most)
        log.info("%s took %.3f ms", point, 1e3 * one.step_s)
        unit_s = one.step_s / cost(point)
        self._unit_s = min(self._unit_s or unit_s, unit_s)
        self._runs.setdefault(point, []).append(one)

    def _fill_up(self, wanted: int, is_held_back: bool) -> None:
        """The cheapest ones, if there was no time for so many."""
        points = [one for one in self._points if one.is_held_back == is_held_back]
        missing = wanted - sum(one in self._runs for one in points)
        left = sorted((one for one in points if one not in self._runs), key=cost)
        for point in left[: max(missing, 0)]:
            self._time(point)

    def _found(self) -> Timed:
        pairs = [(point, typical(runs)) for point, runs in self._runs.items()]
        kept = [one for point, one in pairs if not point.is_held_back]
        held_back = [one for point, one in pairs if point.is_held_back]
        if len(kept) < FEWEST:
            step = self._meter.config.step
            raise ConfigError(
                f"only {len(kept)} kinds of steps fit into max_model_len {step.max_model_len} and "
                f"max_num_seqs {step.max_num_seqs}; raise them"
            )
        busy = sum(is_busy(one) for _, one in pairs)
        return Timed(kept, held_back, len(self._points) - len(pairs), busy)


def typical(runs: Sequence[Observation]) -> Observation:
    """The second fastest, or the faster of two, of those that had the machine to themselves if
    there are any: other work on the machine only adds time."""
    usable = sorted(quiet(runs) or runs, key=lambda one: one.step_s)
    return usable[min((len(usable) - 1) // 2, 1)]


def quiet(runs: Sequence[Observation]) -> list[Observation]:
    return [one for one in runs if not is_busy(one)]


def is_busy(run: Observation) -> bool:
    """Did other programs use the machine meanwhile?"""
    return run.waited_s > BUSY * run.seconds


def spread(points: Sequence[Point]) -> list[Point]:
    """The first, the one in the middle, those in the middle of each half, the last, and so on:
    wherever the list is cut, its begin covers all of them."""
    bits = max(len(points) - 1, 1).bit_length()
    order = [int(f"{at:0{bits}b}"[::-1], 2) for at in range(2**bits)]
    order.insert(BEFORE_LAST, len(points) - 1)
    return [points[at] for at in dict.fromkeys(order) if 0 <= at < len(points)]


def cost(point: Point) -> float:
    """Roughly: positions, and a share of what they read."""
    match point:
        case DecodePoint(rows, context):
            return rows + sum(contexts_of(rows, context)) / 1000
        case MixedPoint(prompts, count, start, beside, _):
            return prompts * count * (1 + (start + count) / 4000) + beside
        case _:
            return 0.0
