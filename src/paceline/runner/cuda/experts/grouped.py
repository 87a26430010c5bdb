"""Grouped GEMMs of MoE layers, and the sum over the experts of a position.

Lines of a tile are outputs, columns are pairs: tensor cores take 64 outputs, but 8 pairs too.
"""

# Kernels take pointers, strides and sizes one by one, and are written as one piece.
# ruff: noqa: C901, PLR0912, PLR0913, PLR0915, PLR0917
# Parameters of kernels have no types.
# pyright: standard

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.runner.cuda.experts.choice import LEAST_PAIRS
from paceline.runner.cuda.gemm.fp8_codes import quantized_rows
from paceline.runner.cuda.gemm.linear_kernel import (
    ExpertChoice,
    ExpertGate,
    ExpertKernel,
    ExpertWeights,
)
from paceline.runner.weights.matrix import PlainMatrix
from paceline.runner.weights.quantized_matrix import FP8, FP8_MAX, ScaledMatrix

FLOAT_BYTES = 4  # of float32, whose tiles must be smaller
WIDE, FEW_ROWS = 1024, 64  # outputs of a program that adds up; it has fewer below so many rows
BLOCK = 128  # inputs and outputs of a block that has one scale


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a grouped GEMM is divided: outputs of a program, inputs that it reads at a time."""

    lines: int
    chunk: int
    warps: int
    stages: int


def tiling_of(bytes_: int, pairs: int, is_gated: bool) -> Tiling:
    """For numbers of so many bytes, and so many pairs in a tile. Fastest on an H200."""
    if bytes_ == FLOAT_BYTES:
        return Tiling(32, 32, 4, 2)
    if bytes_ == 1 and pairs == BLOCK:
        return Tiling(64, BLOCK, 8 if is_gated else 4, 3)
    if bytes_ == 1:
        return Tiling(128, BLOCK, 8, 3) if is_gated else Tiling(128, BLOCK, 4, 4)
    if pairs == BLOCK:
        return Tiling(64, 64, 8, 3) if is_gated else Tiling(128, 64, 4, 3)
    return Tiling(64, 128 if pairs == LEAST_PAIRS else 64, 4, 4)


class Grouped(ExpertKernel):
    """Plain weights of any type."""

    name = "grouped"
    is_invariant = True

    def __init__(self, weights: ExpertWeights, gate_up: Tensor, down: Tensor) -> None:
        self.weights, self._gate_up, self._down = weights, gate_up, down

    @classmethod
    def of(cls, weights: ExpertWeights) -> "Grouped | None":
        gate_up, down = weights.gate_up, weights.down
        if not (isinstance(gate_up, PlainMatrix) and isinstance(down, PlainMatrix)):
            return None
        return cls(weights, gate_up.weight, down.weight)

    def add_to(self, total: Tensor, x: Tensor, choice: ExpertChoice) -> None:
        weights = self.weights
        inner = multiply_plain(x, self._gate_up, weights.gate_up_bias, choice, weights.gate)
        add_pairs(total, multiply_plain(inner, self._down, weights.down_bias, choice), choice)


def multiply_plain(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    choice: ExpertChoice,
    gate: ExpertGate | None = None,
) -> Tensor:
    """The products of pairs, and plain weights of their experts."""
    is_halved = gate is not None and gate.is_gated
    out = x.new_empty((len(choice.pairs), weight.shape[1] // (2 if is_halved else 1)))
    _run(_Operands(x, weight, bias), choice, out, gate)
    return out


class GroupedFp8(ExpertKernel):
    """Weights of fp8 with scales of rows or of blocks. Inputs are quantized in groups."""

    name = "grouped_fp8"

    def __init__(self, weights: ExpertWeights, gate_up: ScaledMatrix, down: ScaledMatrix) -> None:
        self.weights, self._gate_up, self._down = weights, gate_up, down

    @classmethod
    def of(cls, weights: ExpertWeights) -> "GroupedFp8 | None":
        gate_up, down = fp8_of(weights.gate_up), fp8_of(weights.down)
        if gate_up is None or down is None or weights.dtype.itemsize == FLOAT_BYTES:
            return None
        return cls(weights, gate_up, down)

    def add_to(self, total: Tensor, x: Tensor, choice: ExpertChoice) -> None:
        weights, pairs = self.weights, len(choice.pairs)
        width = self._gate_up.shape[0] // 2
        codes, scale = quantized_rows(x, weights.factor, None, BLOCK)
        lines = tiling_of(1, choice.tile_pairs, True).lines
        inner = torch.empty((pairs, width), dtype=FP8, device=x.device)
        inner_scale = torch.empty((width // lines, pairs), device=x.device)
        parts = x.new_empty((pairs, self._down.shape[0]))
        first = _Operands.scaled(codes, scale.t(), BLOCK, self._gate_up, weights.gate_up_bias)
        _run(first, choice, inner, weights.gate, inner_scale)
        second = _Operands.scaled(inner, inner_scale, lines, self._down, weights.down_bias)
        _run(second, choice, parts)
        add_pairs(total, parts, choice)


def fp8_of(matrix: object) -> ScaledMatrix | None:
    """Weights that the kernel takes: fp8 with scales of rows or of blocks of 128 x 128."""
    if not isinstance(matrix, ScaledMatrix) or matrix.weight.dtype != FP8:
        return None
    is_known = matrix.is_by_row or matrix.block == (BLOCK, BLOCK)
    return matrix if is_known and not any(size % BLOCK for size in matrix.shape) else None


@dataclass(frozen=True, slots=True, eq=False)
class _Operands:
    """What a grouped GEMM multiplies.

    x        [positions or pairs, inputs]
    weight   [experts, outputs, inputs]
    x_scale  [groups of inputs, rows]; of codes
    group    inputs that share a scale
    scale    of codes of weights
    """

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    x_scale: Tensor | None = None
    group: int = 0
    scale: Tensor | None = None
    is_blocked: bool = False

    @staticmethod
    def scaled(
        x: Tensor, x_scale: Tensor, group: int, matrix: ScaledMatrix, bias: Tensor | None
    ) -> "_Operands":
        is_blocked = not matrix.is_by_row
        return _Operands(x, matrix.weight, bias, x_scale, group, matrix.scale, is_blocked)


def _run(
    operands: _Operands,
    choice: ExpertChoice,
    out: Tensor,
    gate: ExpertGate | None = None,
    out_scale: Tensor | None = None,
) -> None:
    x, weight, bias = operands.x, operands.weight, operands.bias
    outputs, inputs, is_gated = out.shape[1], x.shape[1], gate is not None and gate.is_gated
    tiling = tiling_of(weight.element_size(), choice.tile_pairs, is_gated)
    chunk = min(tiling.chunk, operands.group) if operands.group else tiling.chunk
    clamp = None if gate is None else gate.clamp
    x_scale = x if operands.x_scale is None else operands.x_scale
    _grouped[(triton.cdiv(outputs, tiling.lines), len(choice.tiles))](
        x,
        x_scale,
        weight,
        weight if operands.scale is None else operands.scale,
        choice.pairs,
        choice.tiles,
        choice.share,
        out if bias is None else bias,
        out,
        out if out_scale is None else out_scale,
        x_scale.shape[1],
        len(out),
        COUNT=choice.experts,
        CHOSEN=choice.chosen,
        OUTPUTS=outputs,
        INPUTS=inputs,
        TILE=choice.tile_pairs,
        LINES=tiling.lines,
        CHUNK=chunk,
        GROUP=max(operands.group, 1),
        SCALED=operands.scale is not None,
        BLOCKED=operands.is_blocked,
        WHOLE=outputs % tiling.lines == 0 and inputs % chunk == 0,
        GATED=is_gated,
        PLAIN=gate is not None and not is_gated,
        SILU=gate is not None and gate.is_silu,
        BIASED=bias is not None,
        MOST=FP8_MAX,
        ALPHA=0.0 if clamp is None else clamp.alpha,
        LIMIT=0.0 if clamp is None else clamp.limit,
        num_warps=tiling.warps,
        num_stages=tiling.stages,
        launch_pdl=True,
    )


def add_pairs(total: Tensor, parts: Tensor, choice: ExpertChoice, is_sorted: bool = False) -> None:
    """total [positions, width] += the sum of the pairs [pairs, width] of each position. Sorted
    ones are in the order of their experts, and not yet multiplied by their shares."""
    rows, width = total.shape
    columns = min(triton.next_power_of_2(width), WIDE)
    if rows < FEW_ROWS:
        columns = min(columns, WIDE // 4)
    _sum[(rows, triton.cdiv(width, columns))](
        total,
        parts,
        choice.pairs if choice.index is None else choice.index,
        choice.share,
        WIDTH=width,
        SORTED=is_sorted,
        CHOSEN=choice.chosen,
        COLUMNS=columns,
        num_warps=4,
        launch_pdl=True,
    )


@triton.jit
def pairs_of(tiles, pairs, COUNT: tl.constexpr, TILE: tl.constexpr):
    """The expert of a program's tile, its pairs, and which of these are there. Of a tile without
    an expert nothing else is known."""
    tile = tiles + tl.program_id(1) * 3
    expert = tl.load(tile)
    at = tl.load(tile + 1) + tl.arange(0, TILE)
    there = (at < tl.load(tile + 2)) & (expert < COUNT)
    return expert, tl.load(pairs + at, mask=there, other=0).to(tl.int64), there


@triton.jit
def gate_of(gate, up, SILU: tl.constexpr, ALPHA: tl.constexpr, LIMIT: tl.constexpr):
    """act(gate) * up; with a limit, that of `ClampedGate`."""
    if LIMIT > 0:
        gate = tl.minimum(gate, LIMIT)
        up = tl.minimum(tl.maximum(up, -LIMIT), LIMIT)
        return gate / (1.0 + tl.exp(-ALPHA * gate)) * (up + 1.0)
    if SILU:
        return gate / (1.0 + tl.exp(-gate)) * up
    inner = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
    return gate / (1.0 + tl.exp(-2.0 * inner)) * up


@triton.jit(do_not_specialize=["x_rows", "out_rows"])
def _grouped(
    x,
    x_scale,
    weight,
    scale,
    pairs,
    tiles,
    share,
    bias,
    out,
    out_scale,
    x_rows,
    out_rows,
    COUNT: tl.constexpr,
    CHOSEN: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    TILE: tl.constexpr,
    LINES: tl.constexpr,
    CHUNK: tl.constexpr,
    GROUP: tl.constexpr,
    SCALED: tl.constexpr,
    BLOCKED: tl.constexpr,
    WHOLE: tl.constexpr,
    GATED: tl.constexpr,
    PLAIN: tl.constexpr,
    SILU: tl.constexpr,
    BIASED: tl.constexpr,
    MOST: tl.constexpr,
    ALPHA: tl.constexpr,
    LIMIT: tl.constexpr,
):
    """x has a row for each pair, whose share multiplies results; if gated or plain, a row for each
    position. If gated, a second weight is OUTPUTS lines on, and results of codes are codes
    too, with a scale for the lines of a program."""
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    expert, pair, there = pairs_of(tiles, pairs, COUNT, TILE)
    if expert >= COUNT:
        return
    source = pair // CHOSEN if GATED or PLAIN else pair
    line = tl.program_id(0) * LINES + tl.arange(0, LINES)
    index = tl.arange(0, CHUNK)
    values = x + source[:, None] * INPUTS + index[None, :]
    lines: tl.constexpr = 2 * OUTPUTS if GATED else OUTPUTS
    first = expert.to(tl.int64) * lines
    factors = weight + (first + line)[:, None] * INPUTS + index[None, :]
    blocks: tl.constexpr = INPUTS // 128
    block = scale + (first + tl.program_id(0) * LINES) // 128 * blocks
    found = tl.zeros([LINES, TILE], tl.float32)
    other = tl.zeros([LINES, TILE], tl.float32)
    for at in range(0, INPUTS, CHUNK):
        row_mask, line_mask = there[:, None], (line < OUTPUTS)[:, None]
        if not WHOLE:
            left = (index < INPUTS - at)[None, :]
            row_mask, line_mask = row_mask & left, line_mask & left
        given = tl.trans(tl.load(values + at, mask=row_mask, other=0.0))
        gate = tl.load(factors + at) if WHOLE else tl.load(factors + at, mask=line_mask, other=0.0)
        if SCALED:
            by = tl.load(x_scale + at // GROUP * x_rows + source)
            by_gate = by * tl.load(block + at // 128) if BLOCKED else by
            found += tl.dot(gate, given) * by_gate[None, :]
            if GATED:
                up = tl.load(factors + OUTPUTS * INPUTS + at)
                if BLOCKED:
                    by = by * tl.load(block + OUTPUTS // 128 * blocks + at // 128)
                other += tl.dot(up, given) * by[None, :]
        else:
            found = tl.dot(gate, given, found, input_precision="ieee")
            if GATED:
                spot = factors + OUTPUTS * INPUTS + at
                up = tl.load(spot) if WHOLE else tl.load(spot, mask=line_mask, other=0.0)
                other = tl.dot(up, given, other, input_precision="ieee")
    if SCALED and not BLOCKED:
        found *= tl.load(scale + first + line)[:, None]
        if GATED:
            other *= tl.load(scale + first + OUTPUTS + line)[:, None]
    if BIASED:
        spot = bias + first + line
        found += tl.load(spot, mask=line < OUTPUTS, other=0.0)[:, None]
        if GATED:
            other += tl.load(spot + OUTPUTS, mask=line < OUTPUTS, other=0.0)[:, None]
    if GATED:
        found = gate_of(found, other, SILU, ALPHA, LIMIT)
        if SCALED:
            each = tl.maximum(tl.max(tl.abs(found), 0), 1e-12) / MOST
            tl.store(out_scale + tl.program_id(0).to(tl.int64) * out_rows + pair, each, mask=there)
            found = found / each[None, :]
    elif PLAIN:
        found = tl.maximum(found, 0.0) * tl.maximum(found, 0.0)
    else:
        found = found * tl.load(share + pair, mask=there, other=0.0)[None, :]
    rows = tl.trans(found).to(out.dtype.element_ty)
    spot = out + pair[:, None] * OUTPUTS + line[None, :]
    tl.store(spot, rows, mask=there[:, None] & (line < OUTPUTS)[None, :])


@triton.jit
def _sum(
    total,
    parts,
    index,
    share,
    WIDTH: tl.constexpr,
    SORTED: tl.constexpr,
    CHOSEN: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Add the pairs of a position to it, in their order."""
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = column < WIDTH
    found = tl.load(total + row * WIDTH + column, mask=mask, other=0.0).to(tl.float32)
    for at in tl.static_range(CHOSEN):
        pair = row * CHOSEN + at
        part = tl.load(index + pair).to(tl.int64) if SORTED else pair
        one = tl.load(parts + part * WIDTH + column, mask=mask, other=0.0).to(tl.float32)
        found += one * tl.load(share + pair) if SORTED else one
    tl.store(total + row * WIDTH + column, found.to(total.dtype.element_ty), mask=mask)
