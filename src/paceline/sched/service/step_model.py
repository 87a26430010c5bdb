"""How long a step takes, learned from the steps that were run."""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from heapq import nlargest
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from paceline.core.capabilities import NS, Points, StepCost, StepTimes
from paceline.core.plan import Plan

SIZES = [1, *(size for at in range(1, 17) for size in (2**at, 3 * 2**at // 2))]  # 1, 2, 3, 4, 6, 8
READ_UNIT, PAIR_UNIT = 1e5, 3e6  # amounts of usual steps, so that both rates are learned quickly
CHUNK = 2048  # positions of a step that computes a prompt alone
RATE = 0.2  # part of an error that is corrected, once a size has been seen
FEW = 4  # observations of a size, after which a long step is an accident rather than news
FAR = 1.0  # largest error of such a step that counts, in times of what was expected
RECENT = 256  # steps with prompts whose times make the margin
RARELY = 1  # of them exceed it
EARLY = 1.15  # margin before so many were seen: ENOUGH
ENOUGH = 32
PRECISION = 16  # of the positions that fit: to a part in so many
MOST_MARGIN = 2.0
STEADY = 16  # steps with prompts for which the cost of a position stays the same
NOTED = 0.25  # least share of an observation between two knots that counts as one of a knot


class StepLoad(NamedTuple):
    """What the time of a step depends on."""

    rows: int = 0
    positions: int = 0
    reads: int = 0  # positions that rows of one position read
    pairs: int = 0  # of a position and one that it reads, in rows of several

    @staticmethod
    def of(plan: Plan) -> "StepLoad":
        count, start = plan.rows.count, plan.start.astype(np.int64)
        rows, positions = len(count), int(count.sum())
        if positions == rows:
            return StepLoad(rows, rows, int(start.sum()) + rows)
        several = count > 1
        width, begin = count[several].astype(np.int64), start[several]
        pairs = int((width * begin + width * (width + 1) // 2).sum())
        reads = int(start.sum()) - int(begin.sum()) + rows - len(width)
        return StepLoad(rows, positions, reads, pairs)

    def with_prompt(self, count: int, start: int = 0) -> "StepLoad":
        """The same with one more row, of `count` positions from `start` on."""
        pairs = self.pairs + count * start + count * (count + 1) // 2
        return StepLoad(self.rows + 1, self.positions + count, self.reads, pairs)


class SizeCurve:
    """Seconds by the number of positions, at some sizes and linear between them.

    Below those that were seen, a position costs as much as at the smallest of them; beyond, it adds
    as much as between the smallest and the largest.
    """

    def __init__(self, sizes: Sequence[int] = SIZES) -> None:
        self.sizes = sizes
        self.seconds = [0.0] * len(sizes)
        self.seen = [0] * len(sizes)

    @property
    def known(self) -> bool:
        return any(self.seen)

    def at(self, positions: int) -> float:
        knot, share = self.place(positions)
        return self.seconds[knot] * (1.0 - share) + self.seconds[knot + 1] * share

    def learn(self, positions: int, error: float, strength: float) -> None:
        """Correct the curve at a size by an error, of which the curve causes `strength`."""
        knot, share = self.place(positions)
        parts = ((knot, 1.0 - share), (knot + 1, share))
        total = (1.0 - share) ** 2 + share**2
        for at, part in parts:
            self.seen[at] += part >= NOTED
            correction = error * strength * RATE * part / total if self.seen[at] > 1 else error
            if self.seen[at]:
                self.seconds[at] = max(self.seconds[at] + correction, 0.0)
        self.fill()
        for at in range(knot):  # larger steps take no less than smaller ones
            self.seconds[at] = min(self.seconds[at], self.seconds[knot])
        for at in range(knot + 1, len(self.sizes)):
            self.seconds[at] = max(self.seconds[at], self.seconds[at - 1])

    def fill(self) -> None:
        """Estimate the sizes that were not seen."""
        found, seconds = [at for at, one in enumerate(self.seen) if one], self.seconds
        sizes = self.sizes
        if not found:
            return
        for low, high in pairwise(found):
            step = (seconds[high] - seconds[low]) / (sizes[high] - sizes[low])
            for at in range(low + 1, high):
                seconds[at] = seconds[low] + step * (sizes[at] - sizes[low])
        low, high = found[0], found[-1]
        for at in range(low):
            seconds[at] = seconds[low] * sizes[at] / sizes[low]
        each = seconds[high] / sizes[high]
        if high - low > 1:
            each = (seconds[high] - seconds[low]) / (sizes[high] - sizes[low])
        for at in range(high + 1, len(sizes)):
            seconds[at] = seconds[high] + max(each, 0.0) * (sizes[at] - sizes[high])

    def place(self, positions: int) -> tuple[int, float]:
        """The knot below a size, and how far the size is on the way to the next one."""
        sizes = self.sizes
        knot = min(max(bisect_right(sizes, positions) - 1, 0), len(sizes) - 2)
        below = sizes[knot]
        return knot, min((max(positions, 1) - below) / (sizes[knot + 1] - below), 1.0)


class StepModel:
    """The seconds of a step: a curve over its positions, of steps with prompts or without, plus
    what its attention reads.

    It may be seeded by steps that were measured at the start, and learns from each step that it is
    shown. It knows no clock: the times that it learns from are those that the scheduler is called
    with, so that a replay learns the same.
    """

    def __init__(self, step_s: float = 0.0) -> None:
        """`step_s` is what a step should take, for the cost of a position; 0: any time."""
        self._step_s = step_s
        self._decode, self._mixed = SizeCurve(), SizeCurve()
        self._filled: Sequence[int] = ()  # sizes up to which steps with prompts are filled up
        self._read = self._pair = 0.0  # seconds of a unit
        self.margin = EARLY  # times the expected seconds, which steps with prompts rarely exceed
        self._ratios: deque[float] = deque(maxlen=RECENT)  # to the expected seconds
        self.learns = step_s > 0.0  # does anything ask?
        self.position: StepCost | None = None  # cost of one in such a step; None: not measured
        self._renewed = 0  # steps with prompts since it was renewed
        self._planned: dict[int, float] = {}  # when the steps in flight were planned
        self._previous = 0.0  # when the latest step was committed

    # -- seeds --------------------------------------------------------------

    def seed(self, times: StepTimes) -> None:
        """Begin with steps that were measured."""
        if times.sizes:
            larger = (one for one in SIZES if one > times.sizes[-1])
            self._filled, self._mixed = times.sizes, SizeCurve((*times.sizes, *larger))
        for curve, points in ((self._decode, times.plain), (self._mixed, times.drafted)):
            sow(curve, points)

    def seed_cost(self, cost: StepCost) -> None:
        """Begin with the cost of a position."""
        each = cost.position_ns / NS
        sow(self._mixed, tuple((size, each * size) for size in SIZES))
        self._pair = cost.read_ns / NS * PAIR_UNIT
        self.position = cost

    # -- learning -----------------------------------------------------------

    def planned(self, plan: Plan, now: float) -> None:
        """A step is launched."""
        if self.learns and len(plan.rows):
            self._planned[plan.step] = now

    def committed(self, plan: Plan, now: float) -> None:
        """A step has ended. It began when it was planned, or when the step before it ended."""
        planned = self._planned.pop(plan.step, None)
        if planned is None:
            return
        begun, self._previous = max(planned, self._previous), now
        for step in [one for one in self._planned if one < plan.step]:  # they were given up
            del self._planned[step]
        if now > begun:
            self.learn(StepLoad.of(plan), now - begun)

    def learn(self, load: StepLoad, seconds: float) -> None:
        """Correct the model by a step that took so long."""
        is_mixed = load.positions > load.rows
        curve = self._mixed if is_mixed else self._decode
        positions = self._filled_up(load.positions) if is_mixed else load.positions
        reads, pairs = load.reads / READ_UNIT, load.pairs / PAIR_UNIT
        expected = curve.at(positions) + reads * self._read + pairs * self._pair
        error = seconds - expected
        knot, _ = curve.place(positions)
        if curve.seen[knot] >= FEW:
            if is_mixed and expected > 0.0:
                self._see(seconds / expected)
            error = min(error, FAR * expected)
        share = 1.0 / (1.0 + reads * reads + pairs * pairs)
        if curve.known:
            self._read = max(self._read + RATE * error * share * reads, 0.0)
            self._pair = max(self._pair + RATE * error * share * pairs, 0.0)
        curve.learn(positions, error, share if curve.known else 1.0)
        if is_mixed and self._step_s and self.position is not None:
            self._renew()

    def _see(self, ratio: float) -> None:
        """A step with prompts took so many times what was expected."""
        self._ratios.append(ratio)
        if len(self._ratios) >= ENOUGH:
            self.margin = min(max(nlargest(1 + RARELY, self._ratios)[-1], 1.0), MOST_MARGIN)

    def _filled_up(self, positions: int) -> int:
        at = bisect_left(self._filled, positions)
        return self._filled[at] if at < len(self._filled) else positions

    def _renew(self) -> None:
        """Take the cost of a position from the curve, at the size of the steps that are wanted:
        smaller steps cost more for each, and would make the next ones smaller still."""
        self._renewed += 1
        if self._renewed == STEADY:
            fits = self.fitting(StepLoad(), SIZES[-1], self._step_s)
            self._renewed, self.position = 0, self.cost(max(fits, 1))

    # -- asking -------------------------------------------------------------

    @property
    def known(self) -> bool:
        """Has it learned anything of steps with prompts?"""
        return self._mixed.known

    def seconds(self, load: StepLoad) -> float:
        """How long a step takes; 0: nothing is known of such steps."""
        is_mixed = load.positions > load.rows and self._mixed.known
        attention = load.reads / READ_UNIT * self._read + load.pairs / PAIR_UNIT * self._pair
        if not is_mixed:
            return self._decode.at(load.positions) + attention
        # Also with prompts, a step takes as long as without.
        least = self._decode.at(load.rows) if self._decode.known else 0.0
        return max(self._mixed.at(self._filled_up(load.positions)), least) + attention

    def fitting(self, load: StepLoad, most: int, seconds: float, start: int = 0) -> int:
        """Positions of a prompt, from `start` on, that a step of `load` can have besides so that it
        takes at most `seconds`."""
        if not self.known or self.seconds(load.with_prompt(most, start)) <= seconds:
            return most
        if self._filled and (full := self._filling(load, most, seconds, start)):
            return full
        low, high = 0, most  # low fits, high does not
        low_s, high_s = self.seconds(load), self.seconds(load.with_prompt(most, start))
        guesses = False
        while high - low > max(low // PRECISION, 1):
            guesses, middle = not guesses, (low + high) // 2
            if guesses and low_s < seconds:
                share = (seconds - low_s) / (high_s - low_s)
                middle = min(max(low + int(share * (high - low)), low + 1), high - 1)
            middle_s = self.seconds(load.with_prompt(middle, start))
            if middle_s <= seconds:
                low, low_s = middle, middle_s
            else:
                high, high_s = middle, middle_s
        return low

    def _filling(self, load: StepLoad, most: int, seconds: float, start: int) -> int:
        """Positions of a prompt that fill a step up; 0: not even those of the smallest size."""
        below = bisect_right(self._filled, load.positions)
        counts = [one - load.positions for one in self._filled[below:]]
        counts = counts[: bisect_left(counts, most)]
        fitting = bisect_right(
            counts, seconds, key=lambda count: self.seconds(load.with_prompt(count, start))
        )
        return counts[fitting - 1] if fitting else 0

    def prompt_s(self, tokens: int) -> float:
        """How long a prompt takes alone, in steps of `CHUNK` positions; 0: it is not known."""
        if not self.known:
            return 0.0
        full, rest = divmod(tokens, CHUNK)
        steps = full * self._mixed.at(CHUNK) + (
            self._mixed.at(self._filled_up(rest)) if rest else 0.0
        )
        return steps + tokens * tokens / 2 / PAIR_UNIT * self._pair

    def cost(self, positions: int) -> StepCost | None:
        """The cost of a position in steps of so many; None: nothing is known."""
        if not self.known:
            return None
        each = self._mixed.at(self._filled_up(positions)) / positions
        return StepCost(max(round(each * NS), 1), max(round(self._pair / PAIR_UNIT * NS), 0))


def sow(curve: SizeCurve, points: Points) -> None:
    """Take over measured points; a step corrects them as quickly as one that was seen."""
    for positions, seconds in points:
        knot, share = curve.place(positions)
        at = knot + round(share)
        curve.seconds[at], curve.seen[at] = seconds, 1
    curve.fill()
