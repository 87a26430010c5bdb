"""Linears of quantized weights, and what they should compute."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.runner.cuda.gemm.linear_kernel import LinearKernel, LinearWeights
from paceline.runner.weights.matrix import Matrix
from paceline.runner.weights.quantized_matrix import (
    FP8,
    ScaledMatrix,
    groups_of_int4,
    rows_of_fp8,
    rows_of_int8,
)
from tests.gpu.coded_linears import MATRICES as CODED

BLOCK = 128
EPSILON = 3.0  # of norms, so large that a kernel which leaves it out is noticed


def blocks_of_fp8(weight: Tensor) -> ScaledMatrix:
    """Weights [outputs, inputs] as fp8, with a scale for each block of 128 x 128."""
    outputs, inputs = weight.shape
    padded = F.pad(weight, (0, -inputs % BLOCK, 0, -outputs % BLOCK))
    blocks = padded.unflatten(0, (-1, BLOCK)).unflatten(2, (-1, BLOCK))
    scale = blocks.abs().amax(dim=(1, 3)).div(448)
    spread = scale.repeat_interleave(BLOCK, 0)[:outputs].repeat_interleave(BLOCK, 1)[:, :inputs]
    return ScaledMatrix((weight / spread).to(FP8), scale.float(), (BLOCK, BLOCK))


Quantized = Callable[[Tensor], Matrix]
INT4: dict[str, Quantized] = {
    f"int4 with zeros by groups of {group}": partial(groups_of_int4, group=group)
    for group in (32, 64, 128)
}
FP8_SCALED: dict[str, Quantized] = {"fp8 by rows": rows_of_fp8, "fp8 by blocks": blocks_of_fp8}
SCALED: dict[str, Quantized] = {"int8 by rows": rows_of_int8, **FP8_SCALED}
MATRICES = CODED | INT4 | SCALED


def quantized(
    name: str,
    shape: tuple[int, int],
    is_full: bool,
    device: str = "cuda",
    dtype: torch.dtype = torch.bfloat16,
) -> LinearWeights:
    """Outputs, inputs. With everything that weights may have, or with the least."""
    outputs, inputs = shape
    matrix = MATRICES[name](torch.randn(outputs, inputs, device=device) * inputs**-0.5)
    bias = torch.randn(outputs, device=device).to(dtype) if is_full else None
    factor = torch.rand(inputs, device=device) + 0.5 if is_full else None
    return LinearWeights("linear", matrix, bias, factor, dtype)


def expected(weights: LinearWeights, x: Tensor) -> Tensor:
    """The linear in float32."""
    x = x.float() if weights.factor is None else x.float() * weights.factor
    found = x @ weights.matrix.dense().t()
    return found if weights.bias is None else found + weights.bias.float()


def normed(x: Tensor) -> Tensor:
    """Inputs divided by their lengths, in float32."""
    return x / x.float().square().sum(dim=1, keepdim=True).add(EPSILON**2).sqrt()


def check_sums(kernel: LinearKernel, x: Tensor, due: Tensor, most: float) -> None:
    """What a kernel computes, by itself and added to something."""
    close(kernel.plain(x), due, most)
    total = torch.randn(due.shape, device=x.device).to(x.dtype)
    before = total.float()
    kernel.add_to(total, x)
    close(total, before + due, most)


def close(got: Tensor, due: Tensor, most: float) -> None:
    assert torch.isfinite(got).all()
    distance = ((got.float() - due).norm(dim=1) / due.norm(dim=1)).max()
    assert distance < most, f"with {len(got)} rows"
