"""The steps that a calibration times."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from paceline.core.config import Config
from paceline.simulate.calibration.step_meter import MOST, Moves, Part

CONTEXTS = (64, 512, 2048, 8192, 32768)  # tokens
STARTS = (0, 1024, 8192)  # tokens before a chunk of a prompt
BESIDE = (0, 8, 64)  # rows that decode beside prompts
BESIDE_CONTEXT = 512
PROMPTS = (1, 4)  # rows of several positions in a step
MOVED = (1, 16, 128)  # blocks
LEAST_STEPS = 3  # of a run


class Point(Protocol):
    """Steps of one kind."""

    @property
    def most(self) -> int:
        """Steps that there can be, without the first one."""
        ...

    def parts(self, step: int) -> list[Part]: ...


@dataclass(frozen=True, slots=True)
class DecodePoint:
    """Rows of one position each."""

    rows: int
    context: int
    most: int = MOST

    def parts(self, step: int) -> list[Part]:
        return [Part(slot, self.context - 1 + step) for slot in range(self.rows)]


@dataclass(frozen=True, slots=True)
class MixedPoint:
    """Prompts, or chunks of them, beside rows that decode. Each step has prompts of its own."""

    prompts: int
    count: int  # positions of each
    start: int
    beside: int
    most: int

    def parts(self, step: int) -> list[Part]:
        decoding = [Part(slot, BESIDE_CONTEXT - 1 + step) for slot in range(self.beside)]
        first = self.beside + step * self.prompts
        samples = step % 2 == 0  # every other chunk is the last one of its prompt
        return decoding + [
            Part(first + at, self.start, self.count, samples) for at in range(self.prompts)
        ]


def sizes(most: int, first: int = 1) -> list[int]:
    """Powers of two up to `most`, and `most` itself."""
    found: list[int] = []
    while first < most:
        found.append(first)
        first *= 2
    return [*found, most]


def decode_points(config: Config) -> Iterator[DecodePoint]:
    step, cache = config.step, config.cache
    tokens = cache.num_blocks * cache.block_size
    for context in CONTEXTS:
        if context + MOST + 2 > step.max_model_len:
            break
        for rows in sizes(min(step.max_num_seqs, step.max_num_batched_tokens)):
            if rows * (context + MOST + cache.block_size) <= tokens:
                yield DecodePoint(rows, context)


def mixed_points(config: Config) -> Iterator[MixedPoint]:
    step = config.step
    for total in sizes(step.max_num_batched_tokens, first=16):
        for prompts in PROMPTS:
            for beside in BESIDE:
                count = (total - beside) // prompts
                if count <= 1 or beside + MOST + 2 > step.max_model_len:
                    continue
                most = min((step.max_num_seqs - beside) // prompts - 1, MOST)
                if most < LEAST_STEPS:
                    continue
                for start in STARTS:
                    if start + count + 1 <= step.max_model_len:
                        yield MixedPoint(prompts, count, start, beside, most)


def moves(config: Config) -> Iterator[tuple[str, int, Moves]]:
    """What is moved, how much of it, and as it is said to a meter."""
    kinds = ["copies"] + ["swap_out", "swap_in"] * (config.preemption.swap_space > 0)
    room = {"copies": config.cache.num_blocks // 2}
    for kind in kinds:
        for blocks in MOVED:
            if blocks <= room.get(kind, config.preemption.swap_space):
                yield kind, blocks, Moves(**{kind: blocks})
