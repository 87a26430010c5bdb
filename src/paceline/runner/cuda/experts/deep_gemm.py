"""Experts by the grouped GEMMs of DeepGEMM, an optional package, for many rows."""

# The package has no stubs.
# pyright: standard

from dataclasses import replace

import torch
from torch import Tensor

from paceline.runner.cuda.experts.choice import ALONE
from paceline.runner.cuda.experts.grouped import add_pairs, fp8_of
from paceline.runner.cuda.experts.humming import gated_pairs
from paceline.runner.cuda.gemm.deep_gemm import package
from paceline.runner.cuda.gemm.fp8 import BLOCK
from paceline.runner.cuda.gemm.fp8_codes import quantized_rows
from paceline.runner.cuda.gemm.linear_kernel import ExpertChoice, ExpertKernel, ExpertWeights
from paceline.runner.weights.matrix import PlainMatrix
from paceline.runner.weights.quantized_matrix import FP8

TILE = 128  # rows of which all are of one expert


class DeepGemmExperts(ExpertKernel):
    """Weights in bfloat16, or in fp8 with scales of blocks; then inputs are quantized too. The rows
    of an expert are padded to whole tiles."""

    name = "deep_gemm"
    least_rows = ALONE + 1

    def __init__(self, weights: ExpertWeights, is_fp8: bool) -> None:
        self.weights, self._is_fp8 = weights, is_fp8

    @classmethod
    def of(cls, weights: ExpertWeights) -> "DeepGemmExperts | None":
        both = weights.gate_up, weights.down
        if weights.dtype != torch.bfloat16 or not both[0].tensors[0].is_cuda:
            return None
        if weights.gate_up_bias is not None or weights.down_bias is not None:
            return None
        is_plain = all(isinstance(one, PlainMatrix) for one in both)
        is_fp8 = all((one := fp8_of(each)) is not None and not one.is_by_row for each in both)
        return cls(weights, is_fp8) if (is_plain or is_fp8) and package() is not None else None

    def add_to(self, total: Tensor, x: Tensor, choice: ExpertChoice) -> None:
        places, sources, experts = in_tiles(choice)
        rows = choice.pairs[sources] // choice.chosen
        found = x.new_empty((len(rows), self.weights.gate_up.shape[0]))
        parts = x.new_empty((len(rows), self.weights.down.shape[0]))
        if self._is_fp8:
            codes, scale = quantized_rows(x, self.weights.factor, None, BLOCK)
            codes = codes.view(torch.uint8)[rows].view(FP8)  # torch cannot index fp8
            self._multiply_fp8(codes, scale[rows], True, found, experts)
            inner = gated_pairs(found, self.weights.gate)
            codes, scale = quantized_rows(inner, None, None, BLOCK)
            self._multiply_fp8(codes, scale, False, parts, experts)
        else:
            gate_up, down = self.weights.gate_up.tensors[0], self.weights.down.tensors[0]
            multiply = package().m_grouped_bf16_gemm_nt_contiguous
            multiply(x[rows], gate_up, found, experts)
            multiply(gated_pairs(found, self.weights.gate), down, parts, experts)
        assert choice.index is not None
        index = places[choice.index].int()
        add_pairs(total, parts, replace(choice, index=index), is_sorted=True)

    def _multiply_fp8(
        self, codes: Tensor, scale: Tensor, is_first: bool, out: Tensor, experts: Tensor
    ) -> None:
        matrix = fp8_of(self.weights.gate_up if is_first else self.weights.down)
        assert matrix is not None
        package().m_grouped_fp8_gemm_nt_contiguous(
            (codes, scale), (matrix.weight, matrix.scale), out, experts
        )


def in_tiles(choice: ExpertChoice) -> tuple[Tensor, Tensor, Tensor]:
    """The row of each sorted pair, if experts begin with whole tiles; of each row, its sorted pair
    (or any) and its expert, -1: none."""
    ends = choice.ends
    assert ends is not None
    pairs, device = len(choice.pairs), ends.device
    begins = torch.nn.functional.pad(ends[:-1], (1, 0))
    counts = ends - begins
    room = (counts + TILE - 1) // TILE * TILE
    last = room.cumsum(0)
    size = pairs + min(pairs, choice.experts) * (TILE - 1)
    row = torch.arange(-(-size // TILE) * TILE, device=device)
    expert = torch.searchsorted(last, row, right=True)
    own = expert.clamp(max=choice.experts - 1)
    local = row - (last - room)[own]
    is_there = (expert < choice.experts) & (local < counts[own])
    sources = torch.where(is_there, begins[own] + local, 0)
    pair = torch.arange(pairs, device=device)
    of_pair = torch.searchsorted(ends, pair, right=True)
    places = (last - room)[of_pair] + pair - begins[of_pair]
    return places, sources, torch.where(is_there, expert, -1).int()
