"""Linears of weights whose inputs are in an order of their own, as GPTQ with act order has them."""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from paceline.runner.cuda.gemm.coded import CodedDecoded, CodedFew
from paceline.runner.cuda.gemm.humming import Humming
from paceline.runner.cuda.gemm.int4_panels import Int4Panels, PanelsDecoded
from paceline.runner.cuda.gemm.linear_kernel import KernelChoice, LinearKernel, LinearWeights, Use
from paceline.runner.cuda.kernels.layers import DeferredNorm
from paceline.runner.weights.quantized_matrix import OrderedMatrix

KINDS: Sequence[type[LinearKernel]] = (
    Humming,
    Int4Panels,
    PanelsDecoded,
    CodedFew,
    CodedDecoded,
)


class Ordered(LinearKernel):
    """Puts inputs into the order of the weights, for the kernels that compute these."""

    name = "ordered"

    def __init__(self, order: Tensor, kernels: KernelChoice) -> None:
        self._order, self._kernels = order, kernels

    @classmethod
    def of(cls, weights: LinearWeights, use: Use) -> "Ordered | None":
        matrix = weights.matrix
        if not isinstance(matrix, OrderedMatrix):
            return None
        factor = None if weights.factor is None else weights.factor[matrix.order]
        inner = replace(weights, matrix=matrix.matrix, factor=factor)
        kernels = KernelChoice(inner, use, KINDS)
        weights.matrix = replace(matrix, matrix=inner.matrix)  # as kernels have packed it
        return cls(matrix.order, kernels) if kernels.is_complete else None

    def plain(self, x: Tensor) -> Tensor:
        return self._kernels.of(len(x)).plain(self._ordered(x))

    def normed(self, hidden: Tensor, floor: float) -> tuple[Tensor, DeferredNorm]:
        return self._kernels.of(len(hidden)).normed(self._ordered(hidden), floor)

    def gated(self, hidden: Tensor, floor: float, is_silu: bool) -> Tensor:
        return self._kernels.of(len(hidden)).gated(self._ordered(hidden), floor, is_silu)

    def add_to(self, total: Tensor, x: Tensor) -> None:
        self._kernels.of(len(x)).add_to(total, self._ordered(x))

    def _ordered(self, x: Tensor) -> Tensor:
        return x.index_select(1, self._order)
