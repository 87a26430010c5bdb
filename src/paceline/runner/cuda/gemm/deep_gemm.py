"""Linears of fp8 weights in blocks by DeepGEMM, an optional package: rows are quantized too."""

# The package has no stubs, and is imported when weights are accepted.
# pyright: standard

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from paceline.runner.cuda.gemm.fp8 import BLOCK, can_multiply, fp8_of
from paceline.runner.cuda.gemm.fp8_codes import quantized_rows
from paceline.runner.cuda.gemm.linear_kernel import LinearKernel, LinearWeights, Use
from paceline.runner.cuda.kernels.layers import DeferredNorm, gated
from paceline.runner.weights.quantized_matrix import ScaledMatrix

PACKAGE = "deep_gemm"


@cache
def package() -> Any:
    """The package, or None if it is not installed."""
    return None if find_spec(PACKAGE) is None else import_module(PACKAGE)


class DeepGemm(LinearKernel):
    """Any number of rows."""

    name = "deep_gemm"

    def __init__(self, weights: LinearWeights, matrix: ScaledMatrix) -> None:
        self._weights, self._matrix = weights, matrix

    @classmethod
    def of(cls, weights: LinearWeights, use: Use) -> "DeepGemm | None":
        """All uses."""
        matrix = fp8_of(weights)
        if matrix is None or matrix.is_by_row or weights.dtype != torch.bfloat16:
            return None
        is_whole = not any(size % BLOCK for size in matrix.shape)
        can = is_whole and can_multiply(matrix.weight) and package() is not None
        return cls(weights, matrix) if can else None

    def plain(self, x: Tensor) -> Tensor:
        return self._multiply(x, None)

    def normed(self, hidden: Tensor, floor: float) -> tuple[Tensor, DeferredNorm]:
        return self._multiply(hidden, floor), DeferredNorm(hidden, 0.0, 0)

    def gated(self, hidden: Tensor, floor: float, is_silu: bool) -> Tensor:
        found, late = self.normed(hidden, floor)
        return gated(found, is_silu, late)

    def add_to(self, total: Tensor, x: Tensor) -> None:
        total.add_(self.plain(x))

    def _multiply(self, x: Tensor, floor: float | None) -> Tensor:
        matrix, bias = self._matrix, self._weights.bias
        codes, scale = quantized_rows(x, self._weights.factor, floor, BLOCK)
        found = x.new_empty((len(codes), matrix.shape[0]))
        package().fp8_gemm_nt((codes, scale), (matrix.weight, matrix.scale), found)
        found = found[: len(x)]
        return found if bias is None else found.add_(bias)
