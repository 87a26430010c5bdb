"""Experts by the grouped GEMMs of humming, an optional package: see `gemm/humming.py`."""

# Kernels take pointers, strides and sizes one by one, and are written as one piece.
# Parameters of kernels have no types.
# pyright: standard

from dataclasses import replace

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from paceline.runner.cuda.experts.grouped import add_pairs, gate_of
from paceline.runner.cuda.gemm.fp8_codes import quantized_rows
from paceline.runner.cuda.gemm.humming import BLOCK, HummingMatrix, Launches
from paceline.runner.cuda.gemm.linear_kernel import (
    ExpertChoice,
    ExpertGate,
    ExpertKernel,
    ExpertWeights,
)
from paceline.runner.weights.quantized_matrix import FP8, ScaledMatrix

PAIRS = (0.25, 1, 4, 8, 16, 32, 64, 128)  # of an expert; each range has a kernel of its own
COLUMNS = 1024  # of a program that computes gates


class HummingExperts(ExpertKernel):
    """Inputs stay as they are, in 16 bits. Those of all pairs are copied in the order of their
    experts."""

    name = "humming"
    is_fp8 = False

    def __init__(self, weights: ExpertWeights, gate_up: HummingMatrix, down: HummingMatrix) -> None:
        self.weights = weights
        experts = len(gate_up.tensors[0])
        rows = [max(int(each * experts), 1) for each in PAIRS]
        self._width, self._outputs = gate_up.shape[0] // 2, down.shape[0]
        self._is_blocked = gate_up.config.input_scale_group_size > 0
        self._gate_up, self._down = (
            Launches(one, "grouped_contiguous", rows) for one in (gate_up, down)
        )

    @classmethod
    def of(cls, weights: ExpertWeights) -> "HummingExperts | None":
        given = (weights.gate_up, weights.gate_up_bias), (weights.down, weights.down_bias)
        gate_up, down = (
            HummingMatrix.of(matrix, weights.dtype, bias, cls.is_fp8) for matrix, bias in given
        )
        if gate_up is None or down is None:
            return None
        return cls(replace(weights, gate_up=gate_up, down=down), gate_up, down)

    def add_to(self, total: Tensor, x: Tensor, choice: ExpertChoice) -> None:
        sorted_ = choice if choice.ends is not None else in_order(choice)
        assert sorted_.ends is not None
        ends = F.pad(sorted_.ends, (1, 0))
        found = x.new_empty((len(choice.pairs), 2 * self._width))
        parts = x.new_empty((len(choice.pairs), self._outputs))
        self._multiply(x, sorted_, found, parts, ends)
        add_pairs(total, parts, sorted_, is_sorted=True)

    def _multiply(
        self, x: Tensor, choice: ExpertChoice, found: Tensor, parts: Tensor, ends: Tensor
    ) -> None:
        factor = self.weights.factor
        x = x if factor is None else (x * factor).to(x.dtype)
        self._gate_up.run(x[choice.pairs // choice.chosen], found, ends=ends)
        self._down.run(gated_pairs(found, self.weights.gate), parts, ends=ends)


class HummingExpertsFp8(HummingExperts):
    """Weights of fp8 and inputs that are quantized too."""

    name = "humming_fp8"
    is_fp8 = True

    @classmethod
    def of(cls, weights: ExpertWeights) -> "HummingExperts | None":
        both = weights.gate_up, weights.down
        is_fp8 = all(isinstance(one, ScaledMatrix) and one.weight.dtype == FP8 for one in both)
        return super().of(weights) if is_fp8 else None

    def _multiply(
        self, x: Tensor, choice: ExpertChoice, found: Tensor, parts: Tensor, ends: Tensor
    ) -> None:
        group, rows = BLOCK if self._is_blocked else 0, choice.pairs // choice.chosen
        codes, scale = quantized_rows(x, self.weights.factor, None, group)
        codes = codes.view(torch.uint8)[rows].view(FP8)  # torch cannot index fp8
        self._gate_up.run(codes, found, scale[rows].contiguous(), ends)
        inner = gated_pairs(found, self.weights.gate)
        codes, scale = quantized_rows(inner, None, None, group)
        count = len(inner)  # without the rows that quantizing adds
        self._down.run(codes[:count], parts, scale[:count].contiguous(), ends)


def in_order(choice: ExpertChoice) -> ExpertChoice:
    """The same pairs, each of which was a tile, in the order of their experts."""
    expert = choice.tiles[:, 0]
    order = expert.argsort(stable=True)
    experts = torch.arange(choice.experts, device=expert.device, dtype=expert.dtype)
    ends = (expert <= experts[:, None]).sum(dim=1, dtype=torch.int32)
    index = order.argsort().int()
    return replace(choice, pairs=order.int(), ends=ends, index=index)


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
