"""Linears on a GPU, from tensors."""

from torch import Tensor

from paceline.runner.cuda.gemm.linear_kernel import ExpertGate, ExpertWeights, LinearWeights
from paceline.runner.weights.matrix import PlainMatrix


def weights_of(weight: Tensor, bias: Tensor | None = None) -> LinearWeights:
    """Of the type that the weights have."""
    bias = None if bias is None else bias.to(weight.dtype)
    return LinearWeights("linear", PlainMatrix(weight), bias, None, weight.dtype)


def experts_of(gate_up: Tensor, down: Tensor) -> ExpertWeights:
    matrices, gate = (PlainMatrix(gate_up), PlainMatrix(down)), ExpertGate(True, None)
    return ExpertWeights(*matrices, None, None, None, gate, gate_up.dtype)
