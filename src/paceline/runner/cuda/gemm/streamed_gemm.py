"""Linears of some rows, as fast as their weights can be read, in CUDA C++.

The kernel is `streamed_gemm.cu`. This module chooses its shape and launches it.
"""

from dataclasses import dataclass
from functools import cache
from itertools import count
from math import gcd
from typing import Literal, get_args

import torch
from torch import Tensor

from paceline.runner.cuda.gemm.linear_kernel import LinearKernel, LinearWeights, Use
from paceline.runner.cuda.kernels.layers import DeferredNorm, normalized
from paceline.runner.cuda.kernels.nvrtc import (
    ALIGNED,
    SHARED_BYTES,
    Kernel,
    TensorMap,
    can_compile,
    multiply,
    source_of,
)
from paceline.runner.tensors import processors_of

Outcome = Literal["PUT", "ADD", "SILU", "GELU"]
Scales = Literal["none", "rows", "blocks"]  # of fp8

GROUPS, DEPTH, TILE, PIECE = 2, 64, 64, 8  # as in the kernel; outputs come in pieces
ROW_BYTES = DEPTH * 2
BLOCK = 128  # outputs and inputs that share a scale
MOST_STAGES, MOST_SPLIT = 12, 2
LEAST_LINES, MOST_LINES = 32, 136  # of a warpgroup
MOST_SUMS = 204  # of a thread, which has 240 registers
MOST_FETCHED = 256  # rows at a time
MOST_COLUMNS = 256  # of an instruction
LEAST_BYTES = 32 << 20  # of weights: smaller ones are read before a wave has started
GATED_BYTES, GATED_LINES = 8 << 20, 24  # where a wave saves a kernel, for one tile of rows
BUSY = 0.9  # share of multiprocessors that a wave must use to pay
# Up to so many rows, the time is that of reading the weights, and this kernel is the fastest.
MOST_ROWS = {Use.NORMED: 64, Use.ADDED: 128, Use.GATED: 192}


@dataclass(frozen=True, slots=True)
class Wave:
    """How the outputs of a linear are split among multiprocessors, in one wave or more."""

    lines: int
    split: int
    programs: int

    @staticmethod
    def of(
        inputs: int,
        outputs: int,
        processors: int,
        least: int = LEAST_LINES,
        most: int = MOST_SPLIT,
        rounds: int = 1,
    ) -> "Wave | None":
        """Split inputs among as few programs as possible; None if no wave uses the GPU well. With
        more `rounds` a program has fewer outputs, for more rows."""
        if outputs % (2 * PIECE):  # pieces are written whole, also of either half
            return None
        processors *= rounds
        for split in range(1, most + 1):
            tiles = processors // split
            lines = -(-outputs // (tiles * GROUPS * PIECE)) * PIECE
            programs = -(-outputs // (GROUPS * lines)) * split
            if least <= lines <= MOST_LINES and programs >= BUSY * processors:
                return Wave(lines, split, programs) if inputs % (DEPTH * split) == 0 else None
        return None

    def most_rows(self, limit: int, scales: Scales = "none") -> int:
        """Rows that fit into a program, `limit` at most."""
        tiles = next(n for n in count() if not self.fits(n + 1, scales))
        return min(limit, tiles * TILE)

    def stages(self, tiles: int) -> int:
        """Stages for so many tiles of rows, as far as shared memory allows."""
        bytes_ = (GROUPS * self.lines + tiles * TILE) * ROW_BYTES
        return min(MOST_STAGES, (SHARED_BYTES - ALIGNED) // bytes_)

    def shared(self, tiles: int) -> int:
        """Bytes of shared memory, for stages and afterwards for sums."""
        stages = self.stages(tiles) * (GROUPS * self.lines + tiles * TILE) * ROW_BYTES
        sums = tiles * TILE * (GROUPS * self.lines * 4 + 32)
        return ALIGNED + max(stages, sums)

    def is_by_row(self, tiles: int) -> bool:
        """Whether warpgroups share so many tiles of rows, and not the outputs."""
        return tiles % GROUPS == 0 and GROUPS * self.lines <= MOST_COLUMNS

    def is_long(self, is_halved: bool) -> bool:
        """Whether all outputs of a program are in more than two blocks of scales, which is what a
        warpgroup knows. Programs begin at multiples of their outputs."""
        outputs = GROUPS * self.lines
        return is_halved or outputs - gcd(outputs, BLOCK) > BLOCK

    def fits(self, tiles: int, scales: Scales = "none") -> bool:
        held = tiles * self.lines // 2 * (2 if scales == "blocks" else 1)
        is_held = held <= MOST_SUMS and tiles * TILE <= MOST_FETCHED
        return is_held and self.shared(tiles) <= SHARED_BYTES


class Streamed(LinearKernel):
    """A linear of some rows. For other shapes, the library is as fast."""

    name = "streamed"

    def __init__(self, weight: Tensor, wave: Wave, most_rows: int) -> None:
        self._lines, self._wave, self.most_rows = weight, wave, most_rows
        self._map = TensorMap(weight, (wave.lines, DEPTH))

    @classmethod
    def of(cls, weights: LinearWeights, use: Use) -> "Streamed | None":
        weight = weights.plain
        if use not in MOST_ROWS or weight is None or weights.bias is not None:
            return None
        size, is_adjacent = weight.numel() * weight.element_size(), weight.stride(1) == 1
        least = GATED_BYTES if use is Use.GATED else LEAST_BYTES
        if weight.dtype != torch.bfloat16 or not is_adjacent or size < least:
            return None
        if not can_compile(weight.device):
            return None
        processors = processors_of(weight.device)
        outputs, inputs = weight.shape
        is_small = size < LEAST_BYTES
        few = (GATED_LINES, 1) if is_small else ()
        wave = Wave.of(inputs, outputs, processors, *few)
        if wave is None:
            return None
        return cls(weight, wave, wave.most_rows(TILE if is_small else MOST_ROWS[use]))

    def plain(self, x: Tensor) -> Tensor:
        out = x.new_empty((len(x), len(self._lines)))
        self._run("PUT", x, out)
        return out

    def normed(self, hidden: Tensor, floor: float) -> tuple[Tensor, DeferredNorm]:
        return self.plain(hidden), DeferredNorm(hidden, floor, hidden.shape[1])

    @property
    def can_norm(self) -> bool:
        """Whether the kernel can apply a norm: it must read all inputs of a row."""
        return self._wave.split == 1

    def gated(self, hidden: Tensor, floor: float, is_silu: bool) -> Tensor:
        out = hidden.new_empty((len(hidden), len(self._lines) // 2))
        outcome: Outcome = "SILU" if is_silu else "GELU"
        if self.can_norm:
            self._run(outcome, hidden, out, floor)
        else:
            self._run(outcome, normalized(hidden, floor), out)
        return out

    def add_to(self, total: Tensor, x: Tensor) -> None:
        self._run("ADD", x, total)

    def _run(self, outcome: Outcome, x: Tensor, out: Tensor, floor: float | None = None) -> None:
        rows, inputs = x.shape
        assert x.dtype == out.dtype == torch.bfloat16
        assert inputs == self._lines.shape[1]
        assert out.is_contiguous()
        kernel = kernel_for(self._wave, -(-rows // TILE), outcome, floor is not None)
        shape = rows, inputs, out.shape[1]
        arguments = (self._map, TensorMap(x, (rows, DEPTH)), out, *shape, floor or 0.0, out, out)
        kernel.launch(self._wave.programs, arguments)


@cache
def kernel_for(
    wave: Wave, tiles: int, outcome: Outcome, is_normed: bool = False, scales: Scales = "none"
) -> Kernel:
    source = source_for(wave, tiles, outcome, is_normed, scales)
    return Kernel(source, "streamed", (GROUPS + 1) * 128, wave.shared(tiles), wave.split)


def source_for(
    wave: Wave, tiles: int, outcome: Outcome, is_normed: bool = False, scales: Scales = "none"
) -> str:
    sizes: dict[str, int | str] = {name: at for at, name in enumerate(get_args(Outcome))}
    sizes |= {"OUTCOME": outcome, "TILES": tiles, "STAGES": wave.stages(tiles)}
    is_halved = outcome in ("SILU", "GELU")
    is_by_row = wave.is_by_row(tiles) and not (scales == "blocks" and wave.is_long(is_halved))
    sizes |= {
        "LINES": wave.lines,
        "BY_ROWS": int(is_by_row),
        "SPLIT": wave.split,
        "NORMED": int(is_normed),
        "SCALED": int(scales != "none"),
        "BLOCKED": int(scales == "blocks"),
    }
    columns = GROUPS * wave.lines if is_by_row else wave.lines
    instruction = multiply("multiply", columns, is_fp8=scales != "none")
    return source_of("streamed_gemm", sizes, instruction, "tiles")
