"""Experts of many rows by the grouped GEMMs of torch's library, in bfloat16 and fp8."""

# The stubs of torch have no `scaled_grouped_mm`.
# pyright: reportAttributeAccessIssue=false, reportUnknownVariableType=false

import torch
from torch import Tensor
from torch.nn.functional import ScalingType, grouped_mm, scaled_grouped_mm

from paceline.runner.cuda.experts.grouped import add_pairs, fp8_of
from paceline.runner.cuda.gemm.fp8 import can_multiply
from paceline.runner.cuda.gemm.fp8_codes import quantized_rows
from paceline.runner.cuda.gemm.linear_kernel import ExpertChoice, ExpertKernel, ExpertWeights
from paceline.runner.cuda.kernels.layers import DeferredNorm, gated
from paceline.runner.weights.matrix import PlainMatrix
from paceline.runner.weights.quantized_matrix import ScaledMatrix

ALIGNED = 16  # inputs and outputs are a multiple
LEAST_ROWS = 1024  # with fewer, copies cost more than the library saves


class LibraryExperts(ExpertKernel):
    """Rows of all pairs are copied in the order of their experts. Inputs of fp8 weights are
    quantized, with a scale for each row."""

    name = "library"
    least_rows = LEAST_ROWS

    def __init__(self, weights: ExpertWeights) -> None:
        self.weights = weights

    @classmethod
    def of(cls, weights: ExpertWeights) -> "LibraryExperts | None":
        matrices = weights.gate_up, weights.down
        is_simple = weights.gate_up_bias is None and weights.gate.clamp is None
        if not is_simple or weights.dtype != torch.bfloat16:
            return None
        for matrix in matrices:
            fp8 = fp8_of(matrix)
            is_known = isinstance(matrix, PlainMatrix) or (fp8 is not None and fp8.is_by_row)
            is_aligned = not any(size % ALIGNED for size in matrix.tensors[0].shape[1:])
            if not is_known or not is_aligned or not can_multiply(matrix.tensors[0]):
                return None
        return cls(weights)

    def add_to(self, total: Tensor, x: Tensor, choice: ExpertChoice) -> None:
        weights, rows = self.weights, choice.pairs // choice.chosen
        if isinstance(weights.gate_up, PlainMatrix) and isinstance(weights.down, PlainMatrix):
            found = _multiplied(x[rows], weights.gate_up, choice)
            parts = _multiplied(_gated(found, weights), weights.down, choice)
        else:
            assert isinstance(weights.gate_up, ScaledMatrix)
            assert isinstance(weights.down, ScaledMatrix)
            codes, scale = quantized_rows(x, weights.factor, None)
            # torch cannot index fp8.
            chosen = codes.view(torch.uint8)[rows].view(codes.dtype)
            found = _multiplied_codes(chosen, scale[rows], weights.gate_up, choice)
            inner, scale = quantized_rows(_gated(found, weights), None, None)
            parts = _multiplied_codes(inner, scale, weights.down, choice)
        add_pairs(total, parts, choice, is_sorted=True)


def _gated(found: Tensor, weights: ExpertWeights) -> Tensor:
    return gated(found, weights.gate.is_silu, DeferredNorm(found, 0.0, 0))


def _multiplied(x: Tensor, matrix: PlainMatrix, choice: ExpertChoice) -> Tensor:
    return grouped_mm(x, matrix.weight.mT, offs=choice.ends)


def _multiplied_codes(
    codes: Tensor, scale: Tensor, matrix: ScaledMatrix, choice: ExpertChoice
) -> Tensor:
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
