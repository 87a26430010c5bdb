"""Linears of fp8 weights, and what they should compute."""

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.runner.cuda.gemm.linear_kernel import LinearWeights
from paceline.runner.weights.quantized_matrix import FP8, ScaledMatrix, rows_of_fp8

BLOCK = 128


def blocks_of_fp8(weight: Tensor) -> ScaledMatrix:
    """Weights [outputs, inputs] as fp8, with a scale for each block of 128 x 128."""
    outputs, inputs = weight.shape
    padded = F.pad(weight, (0, -inputs % BLOCK, 0, -outputs % BLOCK))
    blocks = padded.unflatten(0, (-1, BLOCK)).unflatten(2, (-1, BLOCK))
    scale = blocks.abs().amax(dim=(1, 3)).div(448)
    spread = scale.repeat_interleave(BLOCK, 0)[:outputs].repeat_interleave(BLOCK, 1)[:, :inputs]
    return ScaledMatrix((weight / spread).to(FP8), scale.float(), (BLOCK, BLOCK))


def fp8_weights(
    outputs: int,
    inputs: int,
    device: str,
    is_by_row: bool,
    is_full: bool,
    dtype: torch.dtype = torch.bfloat16,
) -> LinearWeights:
    """With everything that weights may have, or with the least."""
    weight = torch.randn(outputs, inputs, device=device) * inputs**-0.5
    matrix = rows_of_fp8(weight) if is_by_row else blocks_of_fp8(weight)
    bias = torch.randn(outputs, device=device).to(dtype) if is_full else None
    factor = torch.rand(inputs, device=device) + 0.5 if is_full else None
    return LinearWeights("linear", matrix, bias, factor, dtype)


def expected(weights: LinearWeights, x: Tensor) -> Tensor:
    """The linear in float32."""
    x = x.float() if weights.factor is None else x.float() * weights.factor
    found = x @ weights.matrix.dense().t()
    return found if weights.bias is None else found + weights.bias.float()


def close(got: Tensor, due: Tensor, most: float) -> None:
    assert torch.isfinite(got).all()
    assert ((got.float() - due).norm(dim=1) / due.norm(dim=1)).max() < most
