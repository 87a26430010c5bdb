"""Linears of integers of 4 or 8 bits."""

import torch

from paceline.runner.cuda.gemm.linear_kernel import LinearWeights
from paceline.runner.weights.quantized_matrix import groups_of_int4, rows_of_int8


def integer_weights(
    outputs: int, inputs: int, group: int, device: str, is_full: bool, dtype: torch.dtype
) -> LinearWeights:
    """4 bits in groups of inputs; without groups, 8 bits. With everything that weights may have, or
    with the least."""
    weight = torch.randn(outputs, inputs, device=device) * inputs**-0.5
    matrix = groups_of_int4(weight, group) if group else rows_of_int8(weight)
    bias = torch.randn(outputs, device=device).to(dtype) if is_full else None
    factor = torch.rand(inputs, device=device) + 0.5 if is_full else None
    return LinearWeights("linear", matrix, bias, factor, dtype)
