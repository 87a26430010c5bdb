"""Experts of many rows by the grouped GEMMs of torch's library, in fp8."""

# The stubs of torch have no `scaled_grouped_mm`.
# pyright: reportAttributeAccessIssue=false, reportUnknownVariableType=false

import torch
from torch import Tensor
from torch.nn.functional import ScalingType, scaled_grouped_mm

from paceline.runner.cuda.experts.grouped import add_pairs, fp8_of
from paceline.runner.cuda.gemm.fp8 import can_multiply
from paceline.runner.cuda.gemm.fp8_codes import quantized_rows
from paceline.runner.cuda.gemm.linear_kernel import ExpertChoice, ExpertKernel, ExpertWeights
from paceline.runner.cuda.kernels.layers import DeferredNorm, gated
from paceline.runner.weights.quantized_matrix import ScaledMatrix

LEAST_ROWS = 1024  # with fewer, copies cost more than the library saves


class LibraryExperts(ExpertKernel):
    """Weights of fp8 with scales of rows. Inputs are quantized, with a scale for each row, and
    those of all pairs are copied in the order of their experts.

    For bfloat16, the copies cost as much as the library saves.
    """

    name = "library"
    least_rows = LEAST_ROWS

    def __init__(self, weights: ExpertWeights, gate_up: ScaledMatrix, down: ScaledMatrix) -> None:
        self.weights, self._gate_up, self._down = weights, gate_up, down

    @classmethod
    def of(cls, weights: ExpertWeights) -> "LibraryExperts | None":
        gate_up, down = fp8_of(weights.gate_up), fp8_of(weights.down)
        if gate_up is None or down is None or weights.dtype != torch.bfloat16:
            return None
        further = weights.gate_up_bias, weights.down_bias, weights.gate.clamp
        is_plain = all(one is None for one in further)
        is_known = gate_up.is_by_row and down.is_by_row and can_multiply(down.weight)
        return cls(weights, gate_up, down) if is_plain and is_known else None

    def add_to(self, total: Tensor, x: Tensor, choice: ExpertChoice) -> None:
        rows = choice.pairs // choice.chosen
        codes, scale = quantized_rows(x, self.weights.factor, None)
        codes = codes.view(torch.uint8)[rows].view(codes.dtype)  # torch cannot index fp8
        found = _multiplied(codes, scale[rows], self._gate_up, choice)
        inner = gated(found, self.weights.gate.is_silu, DeferredNorm(found, 0.0, 0))
        parts = _multiplied(*quantized_rows(inner, None, None), self._down, choice)
        add_pairs(total, parts, choice, is_sorted=True)


def _multiplied(codes: Tensor, scale: Tensor, matrix: ScaledMatrix, choice: ExpertChoice) -> Tensor:
    return scaled_grouped_mm(
        codes,
        matrix.weight.mT,
        scale.flatten(),
        ScalingType.RowWise,
        matrix.scale.flatten(1),
        ScalingType.RowWise,
        offs=choice.ends,
        output_dtype=torch.bfloat16,
        use_fast_accum=True,
    )
