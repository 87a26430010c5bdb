"""Experts by the grouped GEMMs of humming, an optional package: see `gemm/humming.py`."""

# Kernels take pointers, strides and sizes one by one, and are written as one piece.
# ruff: noqa: PLR0913, PLR0917
# Parameters of kernels have no types.
# pyright: standard

from dataclasses import replace

import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from paceline.runner.cuda.experts.choice import ALONE
from paceline.runner.cuda.experts.grouped import add_pairs, gate_of
from paceline.runner.cuda.experts.sort import inputs_of_pairs
from paceline.runner.cuda.gemm.humming import HummingMatrix, Launches
from paceline.runner.cuda.gemm.linear_kernel import (
    ExpertChoice,
    ExpertGate,
    ExpertKernel,
    ExpertWeights,
)
from paceline.runner.cuda.kernels.nvrtc import can_compile
from paceline.runner.weights.fp4 import Mxfp4Matrix

PAIRS = (0.25, 1, 4, 8, 16, 32, 64, 128)  # of an expert; each range has a kernel of its own
COLUMNS = 1024  # of a program that computes gates


class HummingExperts(ExpertKernel):
    """Inputs stay as they are, in 16 bits. Those of all pairs are copied in the order of their
    experts."""

    name = "humming"

    def __init__(self, weights: ExpertWeights, gate_up: HummingMatrix, down: HummingMatrix) -> None:
        self.weights = replace(weights, gate_up=gate_up, down=down)
        experts = len(gate_up.tensors[0])
        rows = [max(int(each * experts), 1) for each in PAIRS]
        self._width, self._outputs = gate_up.shape[0] // 2, down.shape[0]
        self._gate_up, self._down = (
            Launches(one, "grouped_contiguous", rows) for one in (gate_up, down)
        )

    @classmethod
    def of(cls, weights: ExpertWeights) -> "HummingExperts | None":
        gate_up = weights.gate_up
        if isinstance(gate_up, Mxfp4Matrix) and can_compile(gate_up.weight.device):
            return None  # our own kernel is faster
        given = (weights.gate_up, weights.gate_up_bias), (weights.down, weights.down_bias)
        gate_up, down = (HummingMatrix.of(matrix, weights.dtype, bias) for matrix, bias in given)
        return None if gate_up is None or down is None else cls(weights, gate_up, down)

    def add_to(self, total: Tensor, x: Tensor, choice: ExpertChoice) -> None:
        if choice.ends is None:
            choice, ends = in_order(choice)
        else:
            ends = F.pad(choice.ends, (1, 0))
        found = x.new_empty((len(choice.pairs), 2 * self._width))
        parts = x.new_empty((len(choice.pairs), self._outputs))
        self._gate_up.run(inputs_of_pairs(x, self.weights.factor, choice), found, ends)
        self._down.run(gated_pairs(found, self.weights.gate), parts, ends)
        add_pairs(total, parts, choice, is_sorted=True)


def in_order(choice: ExpertChoice) -> tuple[ExpertChoice, Tensor]:
    """The same pairs, each of which was a tile, in the order of their experts. The tensor has 0,
    and where the pairs of each expert end."""
    count, pairs = choice.experts, choice.pairs
    order, index = pairs.new_empty(len(pairs)), pairs.new_empty(len(pairs))
    ends = pairs.new_empty(count + 1)
    _sort_tiles[(1,)](
        choice.tiles,
        order,
        index,
        ends,
        len(pairs),
        COUNT=count,
        EXPERTS=triton.next_power_of_2(count + 1),
        SIZE=triton.next_power_of_2(ALONE * choice.chosen),  # one variant for all
        num_warps=4,
        launch_pdl=True,
    )
    return replace(choice, pairs=order, ends=ends[1:], index=index), ends


@triton.jit(do_not_specialize=["size"])
def _sort_tiles(
    tiles,
    order,
    index,
    ends,
    size,
    COUNT: tl.constexpr,
    EXPERTS: tl.constexpr,
    SIZE: tl.constexpr,
):
    """One program sorts the few pairs that are tiles."""
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    pair, expert = tl.arange(0, SIZE), tl.arange(0, EXPERTS)
    own = tl.load(tiles + pair * 3, mask=pair < size, other=COUNT)
    other, here = own[None, :], own[:, None]
    is_earlier = (other == here) & (pair[None, :] < pair[:, None])
    place = tl.sum(((other < here) | is_earlier).to(tl.int32), 1)
    tl.store(order + place, pair, mask=pair < size)
    tl.store(index + pair, place, mask=pair < size)
    before = tl.sum((other < expert[:, None]).to(tl.int32), 1)
    tl.store(ends + expert, before, mask=expert <= COUNT)


def gated_pairs(found: Tensor, gate: ExpertGate) -> Tensor:
    """Gate times up of [pairs, 2 * width]."""
    pairs, width = found.shape[0], found.shape[1] // 2
    out = found.new_empty((pairs, width))
    clamp = gate.clamp
    _gated_pairs[(pairs, triton.cdiv(width, COLUMNS))](
        found,
        out,
        WIDTH=width,
        COLUMNS=COLUMNS,
        SILU=gate.is_silu,
        ALPHA=0.0 if clamp is None else clamp.alpha,
        LIMIT=0.0 if clamp is None else clamp.limit,
        num_warps=4,
        launch_pdl=True,
    )
    return out


@triton.jit
def _gated_pairs(
    found,
    out,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    SILU: tl.constexpr,
    ALPHA: tl.constexpr,
    LIMIT: tl.constexpr,
):
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    pair = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < WIDTH
    spot = found + pair * 2 * WIDTH + column
    gate = tl.load(spot, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(spot + WIDTH, mask=inside, other=0.0).to(tl.float32)
    value = gate_of(gate, up, SILU, ALPHA, LIMIT)
    tl.store(out + pair * WIDTH + column, value.to(out.dtype.element_ty), mask=inside)
