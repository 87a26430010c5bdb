"""Linears and experts on a GPU, from tensors, and what they should compute."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.runner.cuda.gemm.linear_kernel import ExpertGate, ExpertWeights, LinearWeights
from paceline.runner.weights.matrix import Matrix, PlainMatrix, stacked
from paceline.runner.weights.quantized_matrix import rows_of_fp8
from tests.gpu.quantized_linears import blocks_of_fp8


def weights_of(weight: Tensor, bias: Tensor | None = None) -> LinearWeights:
    """Of the type that the weights have."""
    bias = None if bias is None else bias.to(weight.dtype)
    return LinearWeights("linear", PlainMatrix(weight), bias, None, weight.dtype)


def experts_of(gate_up: Tensor, down: Tensor) -> ExpertWeights:
    matrices, gate = (PlainMatrix(gate_up), PlainMatrix(down)), ExpertGate(True, None)
    return ExpertWeights(*matrices, None, None, None, gate, gate_up.dtype)


def quantized_experts(
    shape: tuple[int, int, int],
    quantized: Callable[[Tensor], Matrix],
    device: str,
    is_full: bool,
    dtype: torch.dtype,
) -> ExpertWeights:
    """Experts, width, inner width. With everything that experts may have, or with the least."""
    experts, width, inner = shape

    def drawn(outputs: int, inputs: int) -> Matrix:
        each = (torch.randn(outputs, inputs, device=device) * inputs**-0.5 for _ in range(experts))
        return stacked(experts, map(quantized, each))

    def bias(outputs: int) -> Tensor | None:
        return torch.randn(experts, outputs, device=device) if is_full else None

    factor = torch.rand(width, device=device) + 0.5 if is_full else None
    matrices = drawn(2 * inner, width), drawn(width, inner)
    gate = ExpertGate(True, None)
    return ExpertWeights(*matrices, bias(2 * inner), bias(width), factor, gate, dtype)


def fp8_experts(
    shape: tuple[int, int, int], device: str, is_by_row: bool, is_full: bool, dtype: torch.dtype
) -> ExpertWeights:
    quantized = rows_of_fp8 if is_by_row else blocks_of_fp8
    return quantized_experts(shape, quantized, device, is_full, dtype)


def expected_experts(
    x: Tensor, scores: Tensor, weights: ExpertWeights, chosen: int, is_whole: bool
) -> Tensor:
    """Position by position, in float32."""
    share, experts = scores.softmax(dim=-1).topk(chosen)
    if is_whole:
        share = share / share.sum(dim=-1, keepdim=True)
    x = x.float() if weights.factor is None else x.float() * weights.factor
    out = torch.zeros_like(x)
    gate_up, down = weights.gate_up.dense(), weights.down.dense()
    for rank in range(chosen):
        for expert in experts[:, rank].unique().tolist():
            at = experts[:, rank] == expert
            first = x[at] @ gate_up[expert].t()
            if weights.gate_up_bias is not None:
                first += weights.gate_up_bias[expert]
            gate, up = first.chunk(2, dim=-1)
            second = (F.silu(gate) * up) @ down[expert].t()
            if weights.down_bias is not None:
                second += weights.down_bias[expert]
            out[at] += share[at, rank, None] * second
    return out
