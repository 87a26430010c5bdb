"""Linears of few rows: several programs share outputs, so that there are enough programs."""

# Kernels take pointers, strides and sizes one by one.
# ruff: noqa: PLR0913, PLR0917
# Parameters of kernels have no types.
# pyright: standard

from abc import abstractmethod

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.runner.cuda.gemm.library import deferred
from paceline.runner.cuda.gemm.linear_kernel import LinearKernel, LinearWeights
from paceline.runner.cuda.kernels.layers import DeferredNorm, normalized

MOST_SPLITS = 8
PROGRAMS = 264  # two for each multiprocessor
FACTORED_ROWS = 16  # with more, a norm before the linear multiplies by the factor


class FewRows(LinearKernel):
    """A linear that a subclass computes with splits: programs that share outputs. The last one to
    end adds up, in a fixed order.

    `lines` are the outputs of a program, and a split has a multiple of `chunk` inputs.
    """

    def __init__(self, weights: LinearWeights, lines: int, chunk: int) -> None:
        self._weights = weights
        outputs, inputs = weights.matrix.shape
        tiles = outputs // lines
        self.splits = splits_of(tiles, inputs // chunk)
        self.ended = torch.zeros(tiles, dtype=torch.int32, device=weights.matrix.tensors[0].device)

    @abstractmethod
    def launch(
        self, x: Tensor, out: Tensor, parts: Tensor, factor: Tensor | None, is_added: bool
    ) -> None:
        """Write to `out` [n, outputs], or add to it. The results of splits are written to `parts`
        [splits, n, outputs]."""

    def plain(self, x: Tensor) -> Tensor:
        return self._multiplied(x, self._weights.factor)

    def normed(self, hidden: Tensor, floor: float) -> tuple[Tensor, DeferredNorm]:
        factor = self._weights.factor
        if factor is not None and len(hidden) > FACTORED_ROWS:
            x = normalized(hidden, floor, factor)
            return self._multiplied(x, None), DeferredNorm(hidden, 0.0, 0)
        x, late = deferred(hidden, floor, self._weights)
        return self.plain(x), late

    def add_to(self, total: Tensor, x: Tensor) -> None:
        self._run(x, total, self._weights.factor, is_added=True)

    def _multiplied(self, x: Tensor, factor: Tensor | None) -> Tensor:
        out = x.new_empty((len(x), self._weights.matrix.shape[0]))
        self._run(x, out, factor, is_added=False)
        return out

    def _run(self, x: Tensor, out: Tensor, factor: Tensor | None, is_added: bool) -> None:
        parts = self.splits if self.splits > 1 else 0
        self.launch(
            x, out, out.new_empty((parts, *out.shape), dtype=torch.float32), factor, is_added
        )


def splits_of(tiles: int, chunks: int) -> int:
    """Programs that share a tile of outputs, each of which has at least two chunks of inputs."""
    found = 1
    while tiles * found < PROGRAMS and found < MOST_SPLITS and chunks % (2 * found) == 0:
        found *= 2
    return found


@triton.jit
def add_up(
    total,
    out,
    parts,
    ended,
    bias,
    line,
    rows,
    outputs,
    SPLITS: tl.constexpr,
    BIASED: tl.constexpr,
    ADDED: tl.constexpr,
):
    """Store the results [ROWS, LINES] of a split, and of all splits if it is the last to end."""
    row = tl.arange(0, total.shape[0])
    there = (row < rows)[:, None]
    spot = row[:, None] * outputs + line[None, :]
    is_last = True
    if SPLITS > 1:
        tile, size = tl.program_id(0), rows * outputs
        tl.store(parts + tl.program_id(1) * size + spot, total, mask=there)
        tl.debug_barrier()  # all results are written before the counter rises
        is_last = tl.atomic_add(ended + tile, 1, sem="acq_rel") == SPLITS - 1
        if is_last:
            tl.store(ended + tile, 0)
            total = tl.zeros_like(total)
            for part in tl.static_range(SPLITS):
                one = parts + part * size + spot
                total += tl.load(one, mask=there, other=0.0, cache_modifier=".cg")
    if is_last:
        if ADDED:
            total += tl.load(out + spot, mask=there, other=0.0).to(tl.float32)
        if BIASED:
            total += tl.load(bias + line).to(tl.float32)[None, :]
        tl.store(out + spot, total.to(out.dtype.element_ty), mask=there)
