"""The steps that a calibration times: which ones, in which order, and how often."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise, product
from math import exp
from random import Random
from statistics import NormalDist
from typing import Protocol

from paceline.core.errors import ConfigError
from paceline.core.settings.config import Config
from paceline.simulator.calibration.step_meter import FEWEST as STEPS
from paceline.simulator.calibration.step_meter import MOST, Moves, Observation, Part, StepMeter

CONTEXTS = (200, 1500)  # tokens of each row at every size; fewer than the second if memory is full
LONG = {1: (8192,), 8: (8192, 32768), 32: (8192, 32768)}  # the same at few sizes
MIDDLE, SPREAD = 400, 0.7  # contexts of different length: their median, and how far they spread
BESIDE = (0, 1 / 32, 1 / 8, 1 / 4, 1 / 2, 3 / 4)  # rows that decode beside prompts, of max_num_seqs
BESIDE_CONTEXTS = (128, 512)  # of all of these; or different ones
PROMPTS = (1, 2, 4)  # rows of several positions in a step
STARTS = (0, 128, 1024, 8192)  # tokens before a chunk of a prompt
EACH = 8  # kinds of mixed steps of each size
MOVED = (1, 16, 128)  # blocks
LARGE = 16  # rows or positions, from which on sizes are closer to each other
LEAST_STEPS = 3  # of a run
UNEVEN = 0  # instead of a context: all are different
log = logging.getLogger(__name__)
FEWEST, FEWEST_HELD_BACK = 4, 1  # points that a fit needs, and those that say how good it is
TIMES = 3  # that each is timed, if there is time
MOST_TIMES = 8  # the same of those that remain in doubt
ALIKE = 1.1  # the second fastest run of a point, by the fastest one
BUSY = 0.05  # of a run: if threads wait longer for a core, other programs use the machine
BEFORE_LAST = 4  # points that are timed before the largest one
LARGEST = 1 / 6  # of the time, for one point at most


@dataclass(frozen=True, slots=True)
class GraphSizes:
    """The sizes in which a device runs steps; none: it runs any size."""

    rows: tuple[int, ...] = ()  # of decodes
    positions: tuple[int, ...] = ()  # of other steps


class Point(Protocol):
    """Steps of one kind."""

    @property
    def most(self) -> int:
        """Steps that there can be, without the first one."""
        ...

    @property
    def is_held_back(self) -> bool:
        """Held back from the fit, to measure its error."""
        ...

    def parts(self, step: int) -> list[Part]: ...


@dataclass(frozen=True, slots=True)
class DecodePoint:
    """Rows of one position each."""

    rows: int
    context: int
    most: int = MOST
    is_held_back: bool = False

    def parts(self, step: int) -> list[Part]:
        contexts = contexts_of(self.rows, self.context)
        return [Part(slot, context - 1 + step) for slot, context in enumerate(contexts)]


@dataclass(frozen=True, slots=True)
class MixedPoint:
    """Prompts, or chunks of them, beside rows that decode. Each step has prompts of its own."""

    prompts: int
    count: int  # positions of each
    start: int
    beside: int
    context: int  # of those
    most: int
    is_held_back: bool = False

    def parts(self, step: int) -> list[Part]:
        contexts = contexts_of(self.beside, self.context)
        decoding = [Part(slot, context - 1 + step) for slot, context in enumerate(contexts)]
        first = self.beside + step * self.prompts
        # Every other chunk is the last one of its prompt. The end of a step is seen by its samples.
        samples = step % 2 == 0 or not self.beside
        return decoding + [
            Part(first + at, self.start, self.count, samples) for at in range(self.prompts)
        ]


@cache
def contexts_of(rows: int, context: int) -> tuple[int, ...]:
    """As long as that, or of different lengths in any order, as the contexts of a server are."""
    if context != UNEVEN:
        return (context,) * rows
    normal = NormalDist(0.0, SPREAD)
    found = [int(MIDDLE * exp(normal.inv_cdf((at + 0.5) / rows))) for at in range(rows)]
    Random(rows).shuffle(found)
    return tuple(found)


def sizes(most: int, first: int = 1) -> tuple[int, ...]:
    """Powers of two up to `most`, with one in the middle between large ones, and `most` itself."""
    found: set[int] = {most}
    while first < most:
        found.add(first)
        if first >= LARGE and first * 3 // 2 < most:
            found.add(first * 3 // 2)
        first *= 2
    return tuple(sorted(found))


def decode_points(config: Config, of: Sequence[int] = ()) -> Iterator[DecodePoint]:
    """At every size contexts that are short, long, and of different lengths; at every other size
    some between short and long, to check a fit that does not see them."""
    step, cache = config.step, config.cache
    most = min(step.max_num_seqs, step.max_num_batched_tokens)
    tokens = cache.num_blocks * cache.block_size
    every = [size for size in of or sizes(most) if size <= most]
    wanted = [DecodePoint(rows, UNEVEN) for rows in every if rows > 1]
    for rows, contexts in LONG.items():
        wanted += [DecodePoint(rows, context) for context in contexts if rows <= most]
    for number, rows in enumerate(every):
        short, long = CONTEXTS
        room = min(tokens // rows, step.max_model_len) - MOST - cache.block_size
        long = min(long, room)
        wanted += [DecodePoint(rows, context) for context in (short, long) if context >= short]
        if number % 2 == 0 and long > 2 * short:
            wanted.append(DecodePoint(rows, int((short * long) ** 0.5), is_held_back=True))
    for point in dict.fromkeys(wanted):
        contexts = contexts_of(point.rows, point.context)
        needed = sum(contexts) + point.rows * (MOST + cache.block_size)
        if max(contexts) + MOST + 2 <= step.max_model_len and needed <= tokens:
            yield point


def mixed_points(config: Config, of: Sequence[int] = ()) -> Iterator[MixedPoint]:
    """At every size a few kinds, drawn with a fixed seed."""
    step, random = config.step, Random(0)
    beside = sorted({int(share * step.max_num_seqs) for share in BESIDE})
    kinds = list(product(PROMPTS, beside, (*BESIDE_CONTEXTS, UNEVEN), STARTS))
    kinds = [kind for kind in kinds if kind[1] or kind[2] == UNEVEN]  # none: contexts do not matter
    every = [size for size in of if size <= step.max_num_batched_tokens]
    for smaller, size in pairwise((0, *(every or sizes(step.max_num_batched_tokens, first=16)))):
        total = size - random.randrange((size - smaller) // 2 + 1) if every else size
        fitting = [point for kind in kinds if (point := mixed_point(config, total, *kind))]
        for number, point in enumerate(random.sample(fitting, min(EACH, len(fitting)))):
            yield replace(point, is_held_back=number == EACH - 1)


def mixed_point(
    config: Config, total: int, prompts: int, beside: int, context: int, start: int
) -> MixedPoint | None:
    """None if it does not fit."""
    step, cache = config.step, config.cache
    count = (total - beside) // prompts
    most = min((step.max_num_seqs - beside) // prompts - 1, MOST)
    contexts = contexts_of(beside, context)
    longest = max((*contexts, 0)) + MOST + 2
    needed = sum(contexts) + beside * (MOST + cache.block_size)
    needed += prompts * (start + count + cache.block_size)
    fits = max(start + count + 1, longest) <= step.max_model_len and count > 1
    if not fits or most < LEAST_STEPS or needed > cache.num_blocks * cache.block_size:
        return None
    return MixedPoint(prompts, count, start, beside, context, most)


def moves(config: Config) -> Iterator[tuple[str, int, Moves]]:
    """What is moved, how much of it, and the moves of a meter."""
    kinds = ["copies"] + ["swap_out", "swap_in"] * (config.preemption.swap_space > 0)
    room = {"copies": config.cache.num_blocks // 2}
    for kind in kinds:
        for blocks in MOVED:
            if blocks <= room.get(kind, config.preemption.swap_space):
                yield kind, blocks, Moves(**{kind: blocks})


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
