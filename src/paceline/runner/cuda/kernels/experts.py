"""Kernels of a mixture of experts: the choice of experts, grouped linears, and the sum.

A pair is a position and one of its experts, `position * chosen + place`. Pairs are sorted by
expert. A program of a grouped product has some pairs of one expert; which ones, it finds on the
GPU, so that a graph fits every choice:

    pairs      | expert 0      | expert 2 | expert 3                |      expert 1 has none
    programs   | 0    | 1      | 2        | 3    | 4    | 5         | 6 … have nothing to do
"""

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
from paceline.runner.weights.matrix import PlainMatrix

FLOAT_BYTES = 4  # of float32, whose tiles must be smaller
LEAST, MOST = 16, 128  # pairs of a program
WIDE = 1024  # outputs of a program that adds up


def choose_experts(
    scores: Tensor, chosen: int, shares_sum_to_one: bool, every: Tensor
) -> ExpertChoice:
    """Choose by scores [positions, experts]. `every` is all experts and one more, in order."""
    rows, experts = scores.shape
    share = torch.empty((rows, chosen), dtype=torch.float32, device=scores.device)
    found = torch.empty((rows, chosen), dtype=torch.int32, device=scores.device)
    _choose[(rows,)](
        scores,
        found,
        share,
        COUNT=experts,
        EXPERTS=triton.next_power_of_2(experts),
        CHOSEN=chosen,
        PLACES=triton.next_power_of_2(chosen),
        SUM_TO_ONE=shares_sum_to_one,
        num_warps=1,
        launch_pdl=True,
    )
    ordered, pairs = found.view(-1).sort(stable=True)
    return ExpertChoice(share, pairs, torch.searchsorted(ordered, every))


class Grouped(ExpertKernel):
    """Plain weights of any type."""

    name = "grouped"

    def __init__(self, weights: ExpertWeights, gate_up: Tensor, down: Tensor) -> None:
        self._weights, self._gate_up, self._down = weights, gate_up, down

    @classmethod
    def of(cls, weights: ExpertWeights) -> "Grouped | None":
        gate_up, down = weights.gate_up, weights.down
        if not (isinstance(gate_up, PlainMatrix) and isinstance(down, PlainMatrix)):
            return None
        return cls(weights, gate_up.weight, down.weight)

    def __str__(self) -> str:
        return f"{len(self._down)} in {self._weights.down.form}: {self.name}"

    def gated(self, x: Tensor, choice: ExpertChoice) -> Tensor:
        out = x.new_empty((len(choice.pairs), self._gate_up.shape[1] // 2))
        weights = self._weights
        _run(x, self._gate_up, choice, out, weights.gate_up_bias, weights.gate)
        return out

    def add_to(self, total: Tensor, x: Tensor, choice: ExpertChoice) -> None:
        parts = x.new_empty((len(choice.pairs), self._down.shape[1]))
        _run(x, self._down, choice, parts, self._weights.down_bias)
        add_pairs(total, parts, choice)


def add_pairs(total: Tensor, parts: Tensor, choice: ExpertChoice) -> None:
    """total [positions, width] += the sum of the pairs [pairs, width] of each position."""
    rows, width = total.shape
    columns = min(triton.next_power_of_2(width), WIDE)
    _sum[(rows, triton.cdiv(width, columns))](
        total,
        parts,
        WIDTH=width,
        CHOSEN=choice.chosen,
        PLACES=columns,
        num_warps=4,
        launch_pdl=True,
    )


def _run(
    x: Tensor,
    weight: Tensor,
    choice: ExpertChoice,
    out: Tensor,
    bias: Tensor | None,
    gate: ExpertGate | None = None,
) -> None:
    pairs, outputs, experts = len(choice.pairs), out.shape[1], choice.experts
    rows = min(max(triton.next_power_of_2(pairs // experts), LEAST), MOST)
    is_small, is_thin = x.element_size() < FLOAT_BYTES, rows == LEAST
    lines = 64 if is_small and not is_thin else 32
    tiles = pairs // rows + min(experts, pairs)  # at most, however pairs are spread
    clamp = None if gate is None else gate.clamp
    _grouped[(tiles, triton.cdiv(outputs, lines))](
        x,
        weight,
        choice.pairs,
        choice.starts,
        choice.share,
        out if bias is None else bias,
        out,
        COUNT=experts,
        EXPERTS=triton.next_power_of_2(experts),
        CHOSEN=choice.chosen,
        OUTPUTS=outputs,
        INPUTS=x.shape[1],
        ROWS=rows,
        LINES=lines,
        CHUNK=32 if not is_small else 128 if is_thin else 64,
        GATED=gate is not None,
        SILU=gate is not None and gate.is_silu,
        BIASED=bias is not None,
        ALPHA=0.0 if clamp is None else clamp.alpha,
        LIMIT=0.0 if clamp is None else clamp.limit,
        num_warps=8 if rows == MOST else 4,
        num_stages=2 if not is_small else 4 if is_thin else 3,
        launch_pdl=True,
    )


@triton.jit
def _choose(
    scores,
    found,
    share,
    COUNT: tl.constexpr,
    EXPERTS: tl.constexpr,
    CHOSEN: tl.constexpr,
    PLACES: tl.constexpr,
    SUM_TO_ONE: tl.constexpr,
):
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    expert, place = tl.arange(0, EXPERTS), tl.arange(0, PLACES)
    real = expert < COUNT
    given = tl.load(scores + row * COUNT + expert, mask=real, other=float("-inf")).to(tl.float32)
    powers = tl.exp(given - tl.max(given, 0))
    total = tl.sum(powers, 0)
    left = tl.where(real, powers, -1.0)
    best = tl.zeros([PLACES], tl.int32)
    each = tl.zeros([PLACES], tl.float32)
    for at in tl.static_range(CHOSEN):
        one = tl.argmax(left, 0)
        best = tl.where(place == at, one, best)
        each = tl.where(place == at, tl.max(left, 0), each)
        left = tl.where(expert == one, -1.0, left)
    if SUM_TO_ONE:
        total = tl.sum(each, 0)
    tl.store(found + row * CHOSEN + place, best, mask=place < CHOSEN)
    tl.store(share + row * CHOSEN + place, each / total, mask=place < CHOSEN)


@triton.jit
def _pairs_of(pairs, starts, tile, COUNT: tl.constexpr, EXPERTS: tl.constexpr, ROWS: tl.constexpr):
    """The expert of a program, its pairs, and which of these are there. There is no expert, and
    the number of experts instead, if the program has nothing to do."""
    every = tl.arange(0, EXPERTS)
    first = tl.load(starts + every, mask=every < COUNT, other=0).to(tl.int32)
    end = tl.load(starts + every + 1, mask=every < COUNT, other=0).to(tl.int32)
    tiles = (end - first + ROWS - 1) // ROWS
    ends = tl.cumsum(tiles, 0)
    expert = tl.sum((ends <= tile).to(tl.int32), 0)
    begin = tl.sum(tl.where(every == expert, first - (ends - tiles) * ROWS, 0), 0)
    stop = tl.sum(tl.where(every == expert, end, 0), 0)
    at = begin + tile * ROWS + tl.arange(0, ROWS)
    there = at < stop
    return expert, tl.load(pairs + at, mask=there, other=0).to(tl.int64), there


@triton.jit
def _grouped(
    x,
    weight,
    pairs,
    starts,
    share,
    bias,
    out,
    COUNT: tl.constexpr,
    EXPERTS: tl.constexpr,
    CHOSEN: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    ROWS: tl.constexpr,
    LINES: tl.constexpr,
    CHUNK: tl.constexpr,
    GATED: tl.constexpr,
    SILU: tl.constexpr,
    BIASED: tl.constexpr,
    ALPHA: tl.constexpr,
    LIMIT: tl.constexpr,
):
    """If gated, x has a row for each position and a second weight is OUTPUTS lines further on;
    otherwise x has a row for each pair, and the linear is multiplied by its share. With a limit,
    gate and up are those of `ClampedGate`."""
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    expert, pair, there = _pairs_of(pairs, starts, tl.program_id(0), COUNT, EXPERTS, ROWS)
    if expert >= COUNT:
        return
    line = tl.program_id(1) * LINES + tl.arange(0, LINES)
    index = tl.arange(0, CHUNK)
    source = pair // CHOSEN if GATED else pair
    values = x + source[:, None] * INPUTS + index[None, :]
    lines: tl.constexpr = 2 * OUTPUTS if GATED else OUTPUTS
    first = weight + expert.to(tl.int64) * lines * INPUTS
    factors = first + line.to(tl.int64)[None, :] * INPUTS + index[:, None]
    inside = (line < OUTPUTS)[None, :]
    found = tl.zeros([ROWS, LINES], tl.float32)
    other = tl.zeros([ROWS, LINES], tl.float32)
    for at in range(0, INPUTS, CHUNK):
        left = index < INPUTS - at
        given = tl.load(values + at, mask=there[:, None] & left[None, :], other=0.0)
        part = tl.load(factors + at, mask=inside & left[:, None], other=0.0)
        found = tl.dot(given, part, found, input_precision="ieee")
        if GATED:
            part = tl.load(factors + OUTPUTS * INPUTS + at, mask=inside & left[:, None], other=0.0)
            other = tl.dot(given, part, other, input_precision="ieee")
    if BIASED:
        spot = bias + expert * lines + line
        found += tl.load(spot, mask=line < OUTPUTS, other=0.0)[None, :]
        if GATED:
            other += tl.load(spot + OUTPUTS, mask=line < OUTPUTS, other=0.0)[None, :]
    if GATED:
        if LIMIT > 0:
            found = tl.minimum(found, LIMIT)
            other = tl.minimum(tl.maximum(other, -LIMIT), LIMIT)
            found = found / (1.0 + tl.exp(-ALPHA * found)) * (other + 1.0)
        elif SILU:
            found = found / (1.0 + tl.exp(-found)) * other
        else:
            inner = 0.7978845608028654 * (found + 0.044715 * found * found * found)
            found = found / (1.0 + tl.exp(-2.0 * inner)) * other
    else:
        found = found * tl.load(share + pair, mask=there, other=0.0)[:, None]
    spot = out + pair[:, None] * OUTPUTS + line[None, :]
    tl.store(spot, found.to(out.dtype.element_ty), mask=there[:, None] & inside)


@triton.jit
def _sum(total, parts, WIDTH: tl.constexpr, CHOSEN: tl.constexpr, PLACES: tl.constexpr):
    """Add the pairs of a position to it, in their order."""
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    places = tl.program_id(1) * PLACES + tl.arange(0, PLACES)
    mask = places < WIDTH
    found = tl.load(total + row * WIDTH + places, mask=mask, other=0.0).to(tl.float32)
    for at in tl.static_range(CHOSEN):
        spot = parts + (row * CHOSEN + at) * WIDTH + places
        found += tl.load(spot, mask=mask, other=0.0).to(tl.float32)
    tl.store(total + row * WIDTH + places, found.to(total.dtype.element_ty), mask=mask)
