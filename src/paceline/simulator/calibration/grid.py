"""The steps that a calibration times."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise, product
from math import exp
from random import Random
from statistics import NormalDist
from typing import Protocol

from paceline.core.settings.config import Config
from paceline.simulator.calibration.step_meter import MOST, Moves, Part

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
        """A fit does not see it; it says how good the fit is."""
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
    """What is moved, how much of it, and as it is said to a meter."""
    kinds = ["copies"] + ["swap_out", "swap_in"] * (config.preemption.swap_space > 0)
    room = {"copies": config.cache.num_blocks // 2}
    for kind in kinds:
        for blocks in MOVED:
            if blocks <= room.get(kind, config.preemption.swap_space):
                yield kind, blocks, Moves(**{kind: blocks})
