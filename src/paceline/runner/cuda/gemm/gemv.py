"""Linears of a few rows, as fast as the weights can be read, in CUDA C++.

The kernel is `gemv.cu`. This module chooses its shape and launches it.
"""

from abc import abstractmethod
from dataclasses import asdict, dataclass
from functools import cache
from typing import ClassVar

import torch
from torch import Tensor

from paceline.runner.cuda.gemm.fp8 import fp8_of
from paceline.runner.cuda.gemm.int4_panels import panels_of
from paceline.runner.cuda.gemm.linear_kernel import LinearKernel, LinearWeights, Use
from paceline.runner.cuda.kernels.layers import DeferredNorm
from paceline.runner.cuda.kernels.nvrtc import Kernel, can_compile, source_of
from paceline.runner.tensors import processors_of

UNIT, LINES = 128, 16  # inputs of a unit, 64 of bf16; outputs of a tile
MOST_ROWS, MOST_PLAIN_ROWS = 8, 4
MOST_BYTES = 24 << 20  # of plain weights; larger ones have not been timed
SHARED_BYTES = 220 << 10
PAD_BYTES = 16  # behind a row in shared memory
WARPS, BUFFERS, TILES = 15, 4, 2  # of a block, at most
# Blocks of so many warps leave room on a multiprocessor for the next kernel, which reads its first
# weights meanwhile. That pays if weights are few.
FEW_WARPS, FEW_BYTES = 7, 16 << 20
SUM_BYTES = WARPS * BUFFERS * TILES * LINES * 4  # of a row


@dataclass(frozen=True, slots=True)
class GemvVariant:
    """The constants of `gemv.cu`, by their names there."""

    form: str
    group: int
    warps: int
    tiles: int
    ahead: int
    normed: bool
    factored: bool
    biased: bool
    added: bool
    gated: bool
    silu: bool


class Gemv(LinearKernel):
    """A linear of few rows with the norm, the activation and the sum inside. A subclass has its
    weights."""

    is_ordered = True
    form: ClassVar[str]
    unit: ClassVar[int] = UNIT
    ahead: ClassVar[tuple[int, int]]  # units that registers hold, with one tile and with two

    def __init__(self, weights: LinearWeights, content: Tensor, scale: Tensor, group: int) -> None:
        self._weights, self._content, self._scale, self._group = weights, content, scale, group
        self._processors, inputs = processors_of(content.device), weights.matrix.shape[1]
        self._row_bytes = row_bytes(inputs)
        is_small = self.form == "BF16" or (self.form == "FP8" and content.nbytes <= FEW_BYTES)
        self._warps = min(inputs // self.unit, FEW_WARPS if is_small else WARPS)
        self.most_rows = min(MOST_ROWS, SHARED_BYTES // self._row_bytes)

    @classmethod
    def of(cls, weights: LinearWeights, use: Use) -> "Gemv | None":
        outputs, inputs = weights.matrix.shape
        halves = 2 if use is Use.GATED else 1
        if outputs % (halves * LINES) or inputs % cls.unit or weights.dtype != torch.bfloat16:
            return None
        is_short = row_bytes(inputs) <= SHARED_BYTES
        device = weights.matrix.tensors[0].device
        return cls._of(weights) if is_short and can_compile(device) else None

    @classmethod
    @abstractmethod
    def _of(cls, weights: LinearWeights) -> "Gemv | None": ...

    def plain(self, x: Tensor) -> Tensor:
        out = x.new_empty((len(x), self._weights.matrix.shape[0]))
        self._run(x, out, None)
        return out

    def normed(self, hidden: Tensor, floor: float) -> tuple[Tensor, DeferredNorm]:
        out = hidden.new_empty((len(hidden), self._weights.matrix.shape[0]))
        self._run(hidden, out, floor)
        return out, DeferredNorm(hidden, 0.0, 0)

    def gated(self, hidden: Tensor, floor: float, is_silu: bool) -> Tensor:
        out = hidden.new_empty((len(hidden), self._weights.matrix.shape[0] // 2))
        self._run(hidden, out, floor, is_silu)
        return out

    def add_to(self, total: Tensor, x: Tensor) -> None:
        self._run(x, total, None, is_added=True)

    def _run(
        self,
        x: Tensor,
        out: Tensor,
        floor: float | None,
        is_silu: bool | None = None,
        is_added: bool = False,
    ) -> None:
        (rows, inputs), outputs = x.shape, out.shape[1]
        factor, bias = self._weights.factor, self._weights.bias
        tiles = 1 if is_silu is None else 2
        variant = GemvVariant(
            form=self.form,
            group=self._group,
            warps=self._warps,
            tiles=tiles,
            ahead=self.ahead[tiles - 1],
            normed=floor is not None,
            factored=factor is not None,
            biased=bias is not None,
            added=is_added,
            gated=is_silu is not None,
            silu=is_silu is True,
        )
        given = self._content, self._scale, x, x if factor is None else factor
        kernel_for(variant, self.most_rows * self._row_bytes).launch(
            min(outputs // LINES, self._processors),
            (*given, x if bias is None else bias, out, rows, inputs, outputs, floor or 0.0),
            rows * self._row_bytes,
        )


class Int4Gemv(Gemv):
    """4-bit weights in panels."""

    name = "int4_gemv"
    form, ahead = "INT4", (5, 3)

    @classmethod
    def _of(cls, weights: LinearWeights) -> "Int4Gemv | None":
        matrix = panels_of(weights)
        return (
            None if matrix is None else cls(weights, matrix.content, matrix.content, matrix.group)
        )


class Fp8Gemv(Gemv):
    """Fp8 weights with scales of rows or of blocks. Rows are not quantized."""

    name = "fp8_gemv"
    form, ahead = "FP8", (4, 2)

    @classmethod
    def _of(cls, weights: LinearWeights) -> "Fp8Gemv | None":
        matrix = fp8_of(weights)
        if matrix is None:
            return None
        return cls(weights, matrix.weight, matrix.scale, 0 if matrix.is_by_row else UNIT)


class Bf16Gemv(Gemv):
    """Plain weights that are added to the residual stream. The library is faster without a sum, and
    with more rows."""

    name = "bf16_gemv"
    form, ahead, unit = "BF16", (4, 2), 64

    def __init__(self, weights: LinearWeights, content: Tensor, scale: Tensor, group: int) -> None:
        super().__init__(weights, content, scale, group)
        self.most_rows = min(self.most_rows, MOST_PLAIN_ROWS)

    @classmethod
    def of(cls, weights: LinearWeights, use: Use) -> "Gemv | None":
        return super().of(weights, use) if use is Use.ADDED else None

    @classmethod
    def _of(cls, weights: LinearWeights) -> "Bf16Gemv | None":
        weight = weights.plain
        if weight is None or weight.nbytes > MOST_BYTES or weights.factor is not None:
            return None
        return cls(weights, weight, weight, 0)


def row_bytes(inputs: int) -> int:
    """Shared memory that a row needs, with its sums."""
    return 2 * inputs + PAD_BYTES + SUM_BYTES


@cache
def kernel_for(variant: GemvVariant, most_shared: int) -> Kernel:
    given = asdict(variant).items()
    constants = {name.upper(): one if name == "form" else int(one) for name, one in given}
    return Kernel(
        source_of("gemv", constants, "", "units"), "gemv", variant.warps * 32 + 32, most_shared
    )
