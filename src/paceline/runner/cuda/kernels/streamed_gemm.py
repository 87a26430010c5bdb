"""Linears of some rows, as fast as their weights can be read, in CUDA C++.

The kernel is `streamed_gemm.cu`. This module chooses its shape and launches it.
"""

from dataclasses import dataclass
from functools import cache
from typing import Literal, get_args

import torch
from torch import Tensor

from paceline.runner.cuda.kernels.nvrtc import (
    ALIGNED,
    SHARED_BYTES,
    Kernel,
    TensorMap,
    can_compile,
    multiply,
    source_of,
)
from paceline.runner.layers.linear import DenseLinear

Outcome = Literal["PUT", "ADD", "SILU", "GELU"]

GROUPS, DEPTH, TILE, PIECE = 2, 64, 64, 8  # as in the kernel; outputs come in pieces
ROW_BYTES = DEPTH * 2
MOST_STAGES, MOST_SPLIT = 12, 2
LEAST_LINES, MOST_LINES = 32, 136  # of a warpgroup
MOST_SUMS = 204  # of a thread, which has 240 registers
MOST_FETCHED = 256  # rows at a time
LEAST_BYTES = 32 << 20  # of weights: smaller ones are read before a wave has started
GATED_BYTES, GATED_LINES = 8 << 20, 24  # where a wave saves a kernel, for one tile of rows
BUSY = 0.9  # share of multiprocessors that a wave must use to pay


@dataclass(frozen=True, slots=True)
class Wave:
    """How the outputs of a linear are split among multiprocessors, in one wave."""

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
    ) -> "Wave | None":
        """Split inputs among as few programs as possible; None if no wave uses the GPU well."""
        if outputs % (2 * PIECE):  # pieces are written whole, also of either half
            return None
        for split in range(1, most + 1):
            tiles = processors // split
            lines = -(-outputs // (tiles * GROUPS * PIECE)) * PIECE
            programs = -(-outputs // (GROUPS * lines)) * split
            if least <= lines <= MOST_LINES and programs >= BUSY * processors:
                return Wave(lines, split, programs) if inputs % (DEPTH * split) == 0 else None
        return None

    def stages(self, tiles: int) -> int:
        """Stages for so many tiles of rows, as far as shared memory allows."""
        bytes_ = (GROUPS * self.lines + tiles * TILE) * ROW_BYTES
        return min(MOST_STAGES, (SHARED_BYTES - ALIGNED) // bytes_)

    def shared(self, tiles: int) -> int:
        """Bytes of shared memory, for stages and afterwards for sums."""
        stages = self.stages(tiles) * (GROUPS * self.lines + tiles * TILE) * ROW_BYTES
        sums = tiles * TILE * (GROUPS * self.lines * 4 + 32)
        return ALIGNED + max(stages, sums)

    def fits(self, tiles: int) -> bool:
        held = tiles * self.lines // 2
        is_held = held <= MOST_SUMS and tiles * TILE <= MOST_FETCHED
        return is_held and self.shared(tiles) <= SHARED_BYTES


class StreamedLinear:
    """A linear of some rows. For other shapes, the library is as fast."""

    def __init__(self, linear: DenseLinear, is_gated: bool = False) -> None:
        weight = linear.weight  # [inputs, outputs], laid out as [outputs, inputs]
        self._lines = weight.t()
        self._wave: Wave | None = None
        size = weight.numel() * weight.element_size()
        self._is_small = size < LEAST_BYTES
        least = GATED_BYTES if is_gated else LEAST_BYTES
        is_plain = weight.dtype == torch.bfloat16 and weight.stride(0) == 1 and linear.bias is None
        if size >= least and is_plain and can_compile(weight.device):
            processors = torch.cuda.get_device_properties(weight.device).multi_processor_count
            inputs, outputs = weight.shape
            shape = inputs, outputs, processors
            self._wave = Wave.of(*shape, GATED_LINES, 1) if self._is_small else Wave.of(*shape)
        self._map = (
            None if self._wave is None else TensorMap(self._lines, (self._wave.lines, DEPTH))
        )

    def takes(self, rows: int, most: int) -> bool:
        """Whether to use it for so many rows. Beyond `most`, the library is faster."""
        tiles, most = -(-rows // TILE), TILE if self._is_small else most
        return rows <= most and self._wave is not None and self._wave.fits(tiles)

    def __call__(self, x: Tensor) -> Tensor:
        out = torch.empty((len(x), len(self._lines)), dtype=x.dtype, device=x.device)
        self._run("PUT", x, out)
        return out

    @property
    def can_norm(self) -> bool:
        """Whether the kernel can apply a norm: it must read all inputs of a row."""
        return self._wave is not None and self._wave.split == 1

    def gated(self, x: Tensor, is_silu: bool, floor: float | None = None) -> Tensor:
        """Return act(gate) * up, of a linear that computes both. With a `floor`, rows are divided
        by their lengths, or by `floor` if that is larger."""
        out = torch.empty((len(x), len(self._lines) // 2), dtype=x.dtype, device=x.device)
        self._run("SILU" if is_silu else "GELU", x, out, floor)
        return out

    def add_to(self, total: Tensor, x: Tensor) -> None:
        self._run("ADD", x, total)

    def _run(self, outcome: Outcome, x: Tensor, out: Tensor, floor: float | None = None) -> None:
        assert self._wave is not None
        assert self._map is not None
        rows, inputs = x.shape
        assert x.dtype == out.dtype == torch.bfloat16
        assert inputs == self._lines.shape[1]
        assert out.is_contiguous()
        kernel = _kernel(self._wave, -(-rows // TILE), outcome, floor is not None)
        shape = rows, inputs, out.shape[1]
        arguments = (self._map, TensorMap(x, (rows, DEPTH)), out, *shape, floor or 0.0)
        kernel.launch(self._wave.programs, arguments)


@cache
def _kernel(wave: Wave, tiles: int, outcome: Outcome, is_normed: bool) -> Kernel:
    source = source_for(wave, tiles, outcome, is_normed)
    return Kernel(source, "streamed", (GROUPS + 1) * 128, wave.shared(tiles), wave.split)


def source_for(wave: Wave, tiles: int, outcome: Outcome, is_normed: bool = False) -> str:
    sizes: dict[str, int | str] = {name: at for at, name in enumerate(get_args(Outcome))}
    sizes |= {"OUTCOME": outcome, "TILES": tiles, "STAGES": wave.stages(tiles)}
    sizes |= {"LINES": wave.lines, "SPLIT": wave.split, "NORMED": int(is_normed)}
    return source_of("streamed_gemm", sizes, multiply("multiply", wave.lines))
