"""Grouped GEMMs of experts in MXFP4: codes are decoded in registers."""

# Kernels take pointers, strides and sizes one by one, and are written as one piece.
# ruff: noqa: PLR0913, PLR0917
# Parameters of kernels have no types.
# pyright: standard

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.runner.cuda.gemm.linear_kernel import (
    ExpertChoice,
    ExpertGate,
    ExpertKernel,
    ExpertWeights,
)
from paceline.runner.cuda.kernels.experts import Tiling, add_pairs, pairs_of, store_pairs
from paceline.runner.weights.fp4 import Mxfp4Matrix

MANY_PAIRS = 64  # of a tile


def tiling_of(pairs: int, is_gated: bool) -> Tiling:
    """For so many pairs in a tile."""
    return Tiling(64, 64, 4, 3) if pairs <= MANY_PAIRS else Tiling(128, 64, 8, 3)


class GroupedMxfp4(ExpertKernel):
    """Inputs stay as they are, in 16 bits."""

    name = "grouped_mxfp4"

    def __init__(self, weights: ExpertWeights, gate_up: Mxfp4Matrix, down: Mxfp4Matrix) -> None:
        self.weights, self._gate_up, self._down = weights, gate_up, down

    @classmethod
    def of(cls, weights: ExpertWeights) -> "GroupedMxfp4 | None":
        gate_up, down = weights.gate_up, weights.down
        if not (isinstance(gate_up, Mxfp4Matrix) and isinstance(down, Mxfp4Matrix)):
            return None
        return cls(weights, gate_up, down) if weights.dtype == torch.bfloat16 else None

    def __str__(self) -> str:
        return f"{len(self._down.weight)} in {self._down.form}: {self.name}"

    def add_to(self, total: Tensor, x: Tensor, choice: ExpertChoice) -> None:
        weights, pairs = self.weights, len(choice.pairs)
        if weights.factor is not None:
            x = (x * weights.factor).to(x.dtype)
        inner = x.new_empty((pairs, self._gate_up.shape[0] // 2))
        parts = x.new_empty((pairs, self._down.shape[0]))
        _run(x, self._gate_up, weights.gate_up_bias, choice, inner, weights.gate)
        _run(inner, self._down, weights.down_bias, choice, parts)
        add_pairs(total, parts, choice)


def _run(
    x: Tensor,
    matrix: Mxfp4Matrix,
    bias: Tensor | None,
    choice: ExpertChoice,
    out: Tensor,
    gate: ExpertGate | None = None,
) -> None:
    outputs, inputs = out.shape[1], x.shape[1]
    tiling = tiling_of(choice.tile_pairs, gate is not None)
    clamp = None if gate is None else gate.clamp
    _grouped[(triton.cdiv(outputs, tiling.lines), len(choice.tiles))](
        x,
        matrix.weight,
        matrix.exponent,
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
        WHOLE=outputs % tiling.lines == 0 and inputs % tiling.chunk == 0,
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
def _multiplied(
    found,
    given,
    weight,
    exponent,
    line,
    at,
    last,
    WHOLE: tl.constexpr,
    INPUTS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """found + weights of some lines from an input on, times given [CHUNK, TILE]."""
    half, group = tl.arange(0, CHUNK // 2), tl.arange(0, CHUNK // 32)
    codes = weight + line[:, None] * (INPUTS // 2) + at // 2 + half[None, :]
    powers = exponent + line[:, None] * (INPUTS // 32) + at // 32 + group[None, :]
    if WHOLE:
        return tl.dot_scaled(tl.load(codes), tl.load(powers), "e2m1", given, None, "bf16", found)
    inside = (line < last)[:, None]
    code = tl.load(codes, mask=inside & (half < (INPUTS - at) // 2)[None, :], other=0)
    power = tl.load(powers, mask=inside & (group < (INPUTS - at) // 32)[None, :], other=0)
    return tl.dot_scaled(code, power, "e2m1", given, None, "bf16", found)


@triton.jit
def _grouped(
    x,
    weight,
    exponent,
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
    WHOLE: tl.constexpr,
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
    line = tl.program_id(0) * LINES + tl.arange(0, LINES)
    index = tl.arange(0, CHUNK)
    values = x + source[:, None] * INPUTS + index[None, :]
    lines: tl.constexpr = 2 * OUTPUTS if GATED else OUTPUTS
    first = expert.to(tl.int64) * lines
    last = first + OUTPUTS
    found = tl.zeros([LINES, TILE], tl.float32)
    other = tl.zeros([LINES, TILE], tl.float32)
    for at in range(0, INPUTS, CHUNK):
        mask = there[:, None] if WHOLE else there[:, None] & (index < INPUTS - at)[None, :]
        given = tl.trans(tl.load(values + at, mask=mask, other=0.0))
        found = _multiplied(
            found, given, weight, exponent, first + line, at, last, WHOLE, INPUTS, CHUNK
        )
        if GATED:
            end = last + OUTPUTS
            other = _multiplied(
                other, given, weight, exponent, last + line, at, end, WHOLE, INPUTS, CHUNK
            )
    store_pairs(
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
