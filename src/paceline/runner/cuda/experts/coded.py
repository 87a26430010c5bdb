"""Grouped GEMMs of experts in codes of 4 or 8 bits: see `gemm/coded.py`. For many rows, the codes
are decoded first."""

# Kernels take pointers, strides and sizes one by one, and are written as one piece.
# ruff: noqa: PLR0913, PLR0917
# Parameters of kernels have no types.
# pyright: standard

from dataclasses import replace
from math import prod

import triton
import triton.language as tl
from torch import Tensor

from paceline.runner.cuda.experts.grouped import (
    Tiling,
    add_pairs,
    gate_of,
    multiply_plain,
    pairs_of,
)
from paceline.runner.cuda.gemm.coded import HALVES, add_codes, decoded, scale_of
from paceline.runner.cuda.gemm.coded_matrix import LINES, KernelMatrix
from paceline.runner.cuda.gemm.linear_kernel import (
    ExpertChoice,
    ExpertGate,
    ExpertKernel,
    ExpertWeights,
)

DECODED_ROWS = 1024
MOST_DECODED = 3 << 30  # weights of a linear of all experts, of 2 bytes each
MANY_PAIRS = 64  # of a tile, from which on results need the registers of more threads


def tiling_of(pairs: int, chunk: int) -> Tiling:
    """For so many pairs in a tile."""
    return Tiling(LINES, chunk, 4, 4) if pairs < MANY_PAIRS else Tiling(LINES, chunk, 8, 3)


class DecodedExperts(ExpertKernel):
    """Many rows, whose GEMMs take longer than decoding the weights."""

    name = "decoded"
    least_rows = DECODED_ROWS

    def __init__(self, weights: ExpertWeights, gate_up: KernelMatrix, down: KernelMatrix) -> None:
        self.weights, self._gate_up, self._down = weights, gate_up, down

    @classmethod
    def of(cls, weights: ExpertWeights) -> "DecodedExperts | None":
        grouped = GroupedCodes.of(weights)
        if grouped is None:
            return None
        gate_up, down = grouped.gate_up, grouped.down
        is_small = prod(gate_up.weight.shape[:-1]) * gate_up.shape[1] <= MOST_DECODED
        return cls(grouped.weights, gate_up, down) if is_small else None

    def add_to(self, total: Tensor, x: Tensor, choice: ExpertChoice) -> None:
        weights = self.weights
        gate_up = decoded(self._gate_up, weights.factor, x.dtype)
        inner = multiply_plain(x, gate_up, weights.gate_up_bias, choice, weights.gate)
        del gate_up  # its memory is that of the next one
        down = decoded(self._down, None, x.dtype)
        add_pairs(total, multiply_plain(inner, down, weights.down_bias, choice), choice)


class GroupedCodes(ExpertKernel):
    """Inputs stay as they are, in 16 bits."""

    name = "grouped_codes"

    def __init__(self, weights: ExpertWeights, gate_up: KernelMatrix, down: KernelMatrix) -> None:
        self.weights, self.gate_up, self.down = weights, gate_up, down

    @classmethod
    def of(cls, weights: ExpertWeights) -> "GroupedCodes | None":
        # The outputs of gate and those of up are whole tiles.
        if weights.dtype not in HALVES or weights.gate_up.shape[0] % (2 * LINES):
            return None
        gate_up, down = (KernelMatrix.of(one) for one in (weights.gate_up, weights.down))
        if gate_up is None or down is None:
            return None
        return cls(replace(weights, gate_up=gate_up, down=down), gate_up, down)

    def add_to(self, total: Tensor, x: Tensor, choice: ExpertChoice) -> None:
        weights, pairs = self.weights, len(choice.pairs)
        if weights.factor is not None:
            x = (x * weights.factor).to(x.dtype)
        inner = x.new_empty((pairs, self.gate_up.shape[0] // 2))
        parts = x.new_empty((pairs, self.down.shape[0]))
        _run(x, self.gate_up, weights.gate_up_bias, choice, inner, weights.gate)
        _run(inner, self.down, weights.down_bias, choice, parts)
        add_pairs(total, parts, choice)


def _run(
    x: Tensor,
    matrix: KernelMatrix,
    bias: Tensor | None,
    choice: ExpertChoice,
    out: Tensor,
    gate: ExpertGate | None = None,
) -> None:
    outputs, inputs = out.shape[1], x.shape[1]
    tiling = tiling_of(choice.tile_pairs, matrix.chunk)
    clamp = None if gate is None else gate.clamp
    _grouped[(outputs // tiling.lines, len(choice.tiles))](
        x,
        matrix.weight,
        matrix.step,
        matrix.step if matrix.offset is None else matrix.offset,
        matrix.scale,
        choice.pairs,
        choice.tiles,
        choice.share,
        out if bias is None else bias,
        out,
        COUNT=choice.experts,
        CHOSEN=choice.chosen,
        OUTPUTS=outputs,
        INPUTS=inputs,
        TILE=choice.tile_pairs,
        LINES=tiling.lines,
        CHUNK=tiling.chunk,
        HALF=matrix.half,
        GROUP=matrix.group,
        KIND=matrix.kind.value,
        OFFSET=matrix.offset is not None,
        GATED=gate is not None,
        SILU=gate is not None and gate.is_silu,
        BIASED=bias is not None,
        ALPHA=0.0 if clamp is None else clamp.alpha,
        LIMIT=0.0 if clamp is None else clamp.limit,
        num_warps=tiling.warps,
        num_stages=tiling.stages,
        launch_pdl=True,
    )


@triton.jit
def _store_pairs(
    found,
    other,
    first,
    line,
    pair,
    there,
    share,
    bias,
    out,
    OUTPUTS: tl.constexpr,
    GATED: tl.constexpr,
    SILU: tl.constexpr,
    BIASED: tl.constexpr,
    ALPHA: tl.constexpr,
    LIMIT: tl.constexpr,
):
    """Store act(found) * other of pairs, or else found times their shares, [lines, pairs]. `first`
    is the first line of the expert."""
    inside = line < OUTPUTS
    if BIASED:
        spot = bias + first + line
        found += tl.load(spot, mask=inside, other=0.0)[:, None]
        if GATED:
            other += tl.load(spot + OUTPUTS, mask=inside, other=0.0)[:, None]
    if GATED:
        found = gate_of(found, other, SILU, ALPHA, LIMIT)
    else:
        found = found * tl.load(share + pair, mask=there, other=0.0)[None, :]
    rows = tl.trans(found).to(out.dtype.element_ty)
    spot = out + pair[:, None] * OUTPUTS + line[None, :]
    tl.store(spot, rows, mask=there[:, None] & inside[None, :])


@triton.jit
def _grouped(
    x,
    weight,
    step,
    offset,
    scale,
    pairs,
    tiles,
    share,
    bias,
    out,
    COUNT: tl.constexpr,
    CHOSEN: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    TILE: tl.constexpr,
    LINES: tl.constexpr,
    CHUNK: tl.constexpr,
    HALF: tl.constexpr,
    GROUP: tl.constexpr,
    KIND: tl.constexpr,
    OFFSET: tl.constexpr,
    GATED: tl.constexpr,
    SILU: tl.constexpr,
    BIASED: tl.constexpr,
    ALPHA: tl.constexpr,
    LIMIT: tl.constexpr,
):
    """As that of plain weights."""
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    expert, pair, there = pairs_of(tiles, pairs, COUNT, TILE)
    if expert >= COUNT:
        return
    source = pair // CHOSEN if GATED else pair
    line, index = tl.program_id(0) * LINES + tl.arange(0, LINES), tl.arange(0, HALF)
    values = x + source[:, None] * INPUTS + index[None, :]
    lines: tl.constexpr = 2 * OUTPUTS if GATED else OUTPUTS
    per_byte: tl.constexpr = 1 if KIND == "int8" else 2
    width: tl.constexpr = INPUTS // per_byte
    first = expert.to(tl.int64) * lines
    codes = weight + (first + line)[:, None] * width + index[None, :]
    groups = first * (INPUTS // GROUP) + line
    found = tl.zeros([LINES, TILE], tl.float32)
    other = tl.zeros([LINES, TILE], tl.float32)
    for begin in range(0, INPUTS, CHUNK):
        for part in tl.static_range(CHUNK // (2 * HALF)):
            at = begin + part * 2 * HALF
            low = tl.trans(tl.load(values + at, mask=there[:, None], other=0.0))
            high = tl.trans(tl.load(values + at + HALF, mask=there[:, None], other=0.0))
            spot, group = codes + at // per_byte, groups + at // GROUP * lines
            by, past = step + group, offset + group
            found = add_codes(found, low, high, spot, by, past, lines, HALF, GROUP, KIND, OFFSET)
            if GATED:
                spot, by, past = spot + OUTPUTS * width, by + OUTPUTS, past + OUTPUTS
                other = add_codes(
                    other, low, high, spot, by, past, lines, HALF, GROUP, KIND, OFFSET
                )
    found *= scale_of(scale + first + line, KIND, x.dtype.element_ty)[:, None]
    if GATED:
        other *= scale_of(scale + first + OUTPUTS + line, KIND, x.dtype.element_ty)[:, None]
    _store_pairs(
        found,
        other,
        first,
        line,
        pair,
        there,
        share,
        bias,
        out,
        OUTPUTS,
        GATED,
        SILU,
        BIASED,
        ALPHA,
        LIMIT,
    )
