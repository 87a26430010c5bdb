"""Linears of some rows with few outputs, added to a total: several programs share an output."""

# Kernels take pointers, strides and sizes one by one, and are written as one piece.
# ruff: noqa: PLR0913, PLR0917
# Parameters of kernels have no types.
# pyright: standard

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.runner.cuda.gemm.linear_kernel import LinearKernel, LinearWeights, Use

LINES, CHUNK = 32, 128  # outputs of a program, and inputs that it reads at a time
SPLITS = 4
FLOAT_BYTES = 4  # of float32, whose tiles would be too large for a multiprocessor
SOME_ROWS, MOST_ROWS = 64, 128  # rows of a tile; smaller tiles are no faster
MANY_INPUTS = 3072  # from here on, splitting pays with MOST_ROWS too
MOST_OUTPUTS = 2048  # with more, the library has enough programs


class SplitK(LinearKernel):
    """Adds a linear to a total. Of the programs that share outputs, the last one to end adds up.

    inputs     | split 0 | split 1 | split 2 | split 3 |
    program    └ sum     └ sum     └ sum     └ sum, then total += all four, in this order
    """

    name = "split_k"

    def __init__(self, weights: LinearWeights, weight: Tensor) -> None:
        self._weight, self._bias = weight, weights.bias
        outputs, inputs = weight.shape
        # How many programs of a tile have ended. The one that adds up resets it.
        self._ended = torch.zeros(outputs // LINES, dtype=torch.int32, device=weight.device)
        self.most_rows = MOST_ROWS if inputs >= MANY_INPUTS else SOME_ROWS

    @classmethod
    def of(cls, weights: LinearWeights, use: Use) -> "SplitK | None":
        weight = weights.plain
        if weight is None or use is not Use.ADDED:
            return None
        outputs, inputs = weight.shape
        is_divisible = inputs % (SPLITS * CHUNK) == 0 and outputs % LINES == 0
        is_small = outputs <= MOST_OUTPUTS and weight.element_size() < FLOAT_BYTES
        return cls(weights, weight) if is_divisible and is_small else None

    def add_to(self, total: Tensor, x: Tensor) -> None:
        self._run(x, total)

    def parts(self, x: Tensor) -> Tensor:
        """The sums of all splits, [splits, n, outputs] in float32: the linear without its bias."""
        return self._run(x, None)

    def _run(self, x: Tensor, total: Tensor | None) -> Tensor:
        (rows, inputs), outputs = x.shape, len(self._weight)
        parts = torch.empty((SPLITS, rows, outputs), dtype=torch.float32, device=x.device)
        tile_rows = SOME_ROWS if rows <= SOME_ROWS else MOST_ROWS
        _add[(len(self._ended), SPLITS)](
            x,
            self._weight,
            x if self._bias is None else self._bias,
            x if total is None else total,
            parts,
            self._ended,
            rows,
            outputs,
            INPUTS=inputs,
            ROWS=tile_rows,
            LINES=LINES,
            CHUNK=CHUNK,
            SPLITS=SPLITS,
            BIASED=self._bias is not None,
            ADDED=total is not None,
            num_warps=4 if tile_rows == SOME_ROWS else 8,
            num_stages=5 if tile_rows == SOME_ROWS and total is not None else 4,
            launch_pdl=True,
        )
        return parts


@triton.jit(do_not_specialize=["rows"])
def _add(
    x,
    weight,
    bias,
    total,
    parts,
    ended,
    rows,
    outputs,
    INPUTS: tl.constexpr,
    ROWS: tl.constexpr,
    LINES: tl.constexpr,
    CHUNK: tl.constexpr,
    SPLITS: tl.constexpr,
    BIASED: tl.constexpr,
    ADDED: tl.constexpr,
):
    """Without `ADDED`, the sums of the splits are the result."""
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    tile, split = tl.program_id(0), tl.program_id(1)
    row, line = tl.arange(0, ROWS), tile * LINES + tl.arange(0, LINES)
    share: tl.constexpr = INPUTS // SPLITS
    index = split * share + tl.arange(0, CHUNK)
    there = (row < rows)[:, None]
    values = x + row[:, None] * INPUTS + index[None, :]
    factors = weight + line.to(tl.int64)[None, :] * INPUTS + index[:, None]
    found = tl.zeros([ROWS, LINES], tl.float32)
    for at in range(0, share, CHUNK):
        given = tl.load(values + at, mask=there, other=0.0)
        found = tl.dot(given, tl.load(factors + at), found, input_precision="ieee")
    spot = row[:, None] * outputs + line[None, :]
    size = rows * outputs
    tl.store(parts + split * size + spot, found, mask=there)
    if ADDED:
        tl.debug_barrier()  # all results are written before the counter rises
        before = tl.atomic_add(ended + tile, 1, sem="acq_rel")
        if before == SPLITS - 1:
            tl.store(ended + tile, 0)
            found = tl.load(total + spot, mask=there, other=0.0).to(tl.float32)
            if BIASED:
                found += tl.load(bias + line).to(tl.float32)[None, :]
            for part in tl.static_range(SPLITS):
                place = parts + part * size + spot
                found += tl.load(place, mask=there, other=0.0, cache_modifier=".cg")
            tl.store(total + spot, found.to(total.dtype.element_ty), mask=there)
