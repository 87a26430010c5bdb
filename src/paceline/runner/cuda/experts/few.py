"""Quantized experts of few rows, in two kernels without tensor cores. Each pair is a tile.

The time is that of reading the weights, and of starting kernels.
"""

# Kernels take pointers, strides and sizes one by one, and are written as one piece.
# ruff: noqa: C901, PLR0913, PLR0917, PLR1714
# Parameters of kernels have no types.
# pyright: standard

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.runner.cuda.experts.choice import ALONE
from paceline.runner.cuda.experts.grouped import fp8_of, gate_of
from paceline.runner.cuda.gemm.coded import HALVES, halves
from paceline.runner.cuda.gemm.coded_matrix import KernelMatrix
from paceline.runner.cuda.gemm.linear_kernel import ExpertChoice, ExpertKernel, ExpertWeights
from paceline.runner.weights.matrix import Matrix

LINES = 4  # outputs of a program, or pairs of gate and up
CHUNK = 1024  # inputs that it reads at a time


@dataclass(frozen=True, slots=True, eq=False)
class Operand:
    """Weights as `_sums` reads them: tensors, and how to decode."""

    tensors: Sequence[Tensor]  # codes or numbers, steps, offsets, scales
    constants: dict[str, Any]

    @staticmethod
    def of(matrix: Matrix, dtype: torch.dtype) -> "Operand | None":
        """None: it cannot read these weights."""
        if (fp8 := fp8_of(matrix)) is not None:
            kind = "rows" if fp8.is_by_row else "blocks"
            return Operand([fp8.weight, *[fp8.scale] * 3], sizes(kind))
        if isinstance(matrix, KernelMatrix) and dtype in HALVES:
            offset = matrix.step if matrix.offset is None else matrix.offset
            tensors = matrix.weight, matrix.step, offset, matrix.scale
            is_offset = matrix.offset is not None
            return Operand(tensors, sizes(matrix.kind.value, matrix.half, matrix.group, is_offset))
        return None


def sizes(kind: str, half: int = 1, group: int = 1, is_offset: bool = False) -> dict[str, Any]:
    return {"KIND": kind, "HALF": half, "GROUP": group, "OFFSET": is_offset}


class FewExperts(ExpertKernel):
    """Inputs stay as they are, in 16 bits or 32."""

    name = "few"
    most_rows = ALONE

    def __init__(self, weights: ExpertWeights, gate_up: Operand, down: Operand) -> None:
        self.weights, self._gate_up, self._down = weights, gate_up, down

    @classmethod
    def of(cls, weights: ExpertWeights) -> "FewExperts | None":
        first, second = (KernelMatrix.of(one) for one in (weights.gate_up, weights.down))
        if first is not None and second is not None:
            weights = replace(weights, gate_up=first, down=second)
        gate_up = Operand.of(weights.gate_up, weights.dtype)
        down = Operand.of(weights.down, weights.dtype)
        return None if gate_up is None or down is None else cls(weights, gate_up, down)

    def add_to(self, total: Tensor, x: Tensor, choice: ExpertChoice) -> None:
        weights, pairs, (rows, width) = self.weights, len(choice.pairs), x.shape
        inner, clamp = weights.down.shape[-1], weights.gate.clamp
        between = x.new_empty((pairs, inner))
        experts = {"CHOSEN": choice.chosen, "LINES": LINES, "num_warps": 4, "launch_pdl": True}
        _gated[(triton.cdiv(inner, LINES), pairs)](
            x,
            *self._gate_up.tensors,
            choice.tiles,
            x if weights.factor is None else weights.factor,
            x if weights.gate_up_bias is None else weights.gate_up_bias,
            between,
            OUTPUTS=inner,
            INPUTS=width,
            CHUNK=min(CHUNK, triton.next_power_of_2(width)),
            FACTORED=weights.factor is not None,
            BIASED=weights.gate_up_bias is not None,
            SILU=weights.gate.is_silu,
            ALPHA=0.0 if clamp is None else clamp.alpha,
            LIMIT=0.0 if clamp is None else clamp.limit,
            **self._gate_up.constants,
            **experts,
        )
        _summed[(triton.cdiv(width, LINES), rows)](
            between,
            *self._down.tensors,
            choice.tiles,
            choice.share,
            x if weights.down_bias is None else weights.down_bias,
            total,
            OUTPUTS=width,
            INPUTS=inner,
            CHUNK=min(CHUNK, triton.next_power_of_2(inner)),
            BIASED=weights.down_bias is not None,
            **self._down.constants,
            **experts,
        )


@triton.jit
def _sums(
    x,
    factor,
    weight,
    step,
    offset,
    scale,
    first,
    line,
    inside,
    INPUTS: tl.constexpr,
    ALL: tl.constexpr,
    CHUNK: tl.constexpr,
    FACTORED: tl.constexpr,
    KIND: tl.constexpr,
    HALF: tl.constexpr,
    GROUP: tl.constexpr,
    OFFSET: tl.constexpr,
):
    """Products of a row x [INPUTS] and some of the lines of an expert, which has ALL from `first`
    on, [lines]."""
    whole = first + line
    if KIND == "rows" or KIND == "blocks" or KIND == "int8":
        found = tl.zeros([line.shape[0]], tl.float32)
        for at in range(0, INPUTS, CHUNK):
            index = at + tl.arange(0, CHUNK)
            there = index < INPUTS
            mask = inside[:, None] & there[None, :]
            spot = weight + whole[:, None] * INPUTS + index[None, :]
            numbers = tl.load(spot, mask=mask, other=0.0).to(tl.float32)
            given = tl.load(x + index, mask=there, other=0.0).to(tl.float32)
            if FACTORED:
                given *= tl.load(factor + index, mask=there, other=0.0)
            if KIND == "blocks":
                spot = scale + whole[:, None] // 128 * (INPUTS // 128) + index[None, :] // 128
                numbers *= tl.load(spot, mask=mask, other=0.0)
            if KIND == "int8":
                group = first * (INPUTS // GROUP) + index[None, :] // GROUP * ALL + line[:, None]
                numbers *= tl.load(step + group, mask=mask, other=0.0).to(tl.float32)
                if OFFSET:
                    numbers += tl.load(offset + group, mask=mask, other=0.0).to(tl.float32)
            found += tl.sum(numbers * given[None, :], 1)
    else:
        parts: tl.constexpr = CHUNK // (2 * HALF)
        total = tl.zeros([line.shape[0], parts], tl.float32)
        for at in range(0, INPUTS // 2, CHUNK // 2):
            index = at + tl.arange(0, CHUNK // 2)
            there = index < INPUTS // 2
            mask = inside[:, None] & there[None, :]
            spot = weight + whole[:, None] * (INPUTS // 2) + index[None, :]
            low, high = halves(tl.load(spot, mask=mask, other=0), x.dtype.element_ty, KIND)
            part = at // HALF + tl.arange(0, parts)
            held = inside[:, None] & (part < INPUTS // (2 * HALF))[None, :]
            for half in tl.static_range(2):
                input_ = index // HALF * 2 * HALF + index % HALF + half * HALF
                given = tl.load(x + input_, mask=there, other=0.0).to(tl.float32)
                if FACTORED:
                    given *= tl.load(factor + input_, mask=there, other=0.0)
                codes = high if half else low
                each = tl.reshape(
                    codes.to(tl.float32) * given[None, :], [line.shape[0], parts, HALF]
                )
                number = (2 * part + half) * HALF // GROUP
                group = first * (INPUTS // GROUP) + number[None, :] * ALL + line[:, None]
                by = tl.load(step + group, mask=held, other=0.0).to(tl.float32)
                total += tl.sum(each, 2) * by
                if OFFSET:
                    sums = tl.sum(tl.reshape(given, [parts, HALF]), 1)
                    past = tl.load(offset + group, mask=held, other=0.0).to(tl.float32)
                    total += past * sums[None, :]
        found = tl.sum(total, 1)
    if KIND != "blocks":
        found *= tl.load(scale + whole, mask=inside, other=0.0)
    return found


@triton.jit
def _gated(
    x,
    weight,
    step,
    offset,
    scale,
    tiles,
    factor,
    bias,
    out,
    CHOSEN: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    LINES: tl.constexpr,
    CHUNK: tl.constexpr,
    KIND: tl.constexpr,
    HALF: tl.constexpr,
    GROUP: tl.constexpr,
    OFFSET: tl.constexpr,
    FACTORED: tl.constexpr,
    BIASED: tl.constexpr,
    SILU: tl.constexpr,
    ALPHA: tl.constexpr,
    LIMIT: tl.constexpr,
):
    """act(gate) * up of a pair. Gates and ups take turns in `line`."""
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    pair, own = tl.program_id(1), tl.arange(0, 2 * LINES)
    output = tl.program_id(0) * LINES + own // 2
    line, inside = output + own % 2 * OUTPUTS, output < OUTPUTS
    first = tl.load(tiles + pair * 3).to(tl.int64) * 2 * OUTPUTS
    found = _sums(
        x + pair // CHOSEN * INPUTS, factor, weight, step, offset, scale, first, line, inside,
        INPUTS, 2 * OUTPUTS, CHUNK, FACTORED, KIND, HALF, GROUP, OFFSET,
    )  # fmt: skip
    if BIASED:
        found += tl.load(bias + first + line, mask=inside, other=0.0)
    gate, up = tl.split(tl.reshape(found, [LINES, 2]))
    output = tl.program_id(0) * LINES + tl.arange(0, LINES)
    spot = out + pair.to(tl.int64) * OUTPUTS + output
    found = gate_of(gate, up, SILU, ALPHA, LIMIT)
    tl.store(spot, found.to(out.dtype.element_ty), mask=output < OUTPUTS)


@triton.jit
def _summed(
    x,
    weight,
    step,
    offset,
    scale,
    tiles,
    share,
    bias,
    out,
    CHOSEN: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    LINES: tl.constexpr,
    CHUNK: tl.constexpr,
    KIND: tl.constexpr,
    HALF: tl.constexpr,
    GROUP: tl.constexpr,
    OFFSET: tl.constexpr,
    BIASED: tl.constexpr,
):
    """Add the experts of a row to it, in their order."""
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    row = tl.program_id(1)
    line = tl.program_id(0) * LINES + tl.arange(0, LINES)
    inside = line < OUTPUTS
    spot = out + row.to(tl.int64) * OUTPUTS + line
    total = tl.load(spot, mask=inside, other=0.0).to(tl.float32)
    for rank in range(CHOSEN):
        pair = row * CHOSEN + rank
        first = tl.load(tiles + pair * 3).to(tl.int64) * OUTPUTS
        found = _sums(
            x + pair * INPUTS, x, weight, step, offset, scale, first, line, inside,
            INPUTS, OUTPUTS, CHUNK, False, KIND, HALF, GROUP, OFFSET,
        )  # fmt: skip
        if BIASED:
            found += tl.load(bias + first + line, mask=inside, other=0.0)
        total += found * tl.load(share + pair)
    tl.store(spot, total.to(out.dtype.element_ty), mask=inside)
