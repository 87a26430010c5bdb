"""Linears of a layer on a GPU, fused with the norm, activation or sum around them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor

from paceline.runner.cuda.adapters import CudaAdaptedLinear, Widen, not_adapted
from paceline.runner.cuda.gemm.coded import CodedDecoded, CodedFew
from paceline.runner.cuda.gemm.fixed_tiles import FixedFp8, FixedTiles
from paceline.runner.cuda.gemm.fp8 import Fp8Blocks, Fp8Library, Fp8Streamed
from paceline.runner.cuda.gemm.gemv import Bf16Gemv, Fp8Gemv, Int4Gemv
from paceline.runner.cuda.gemm.humming import Humming
from paceline.runner.cuda.gemm.int4_panels import Int4Panels, PanelsDecoded
from paceline.runner.cuda.gemm.library import Library, deferred
from paceline.runner.cuda.gemm.linear_kernel import KernelChoice, LinearKernel, LinearWeights, Use
from paceline.runner.cuda.gemm.one_row import OneRow
from paceline.runner.cuda.gemm.scaled import Int8Library, ScaledDecoded, ScaledFew
from paceline.runner.cuda.gemm.split_k import SplitK
from paceline.runner.cuda.gemm.streamed_gemm import Streamed
from paceline.runner.cuda.kernels.layers import (
    DeferredNorm,
    add_normalized,
    divide,
    gated,
    normalized,
)
from paceline.runner.layers.factory import LayerFactory, whole
from paceline.runner.layers.linear import LinearParts
from paceline.runner.models.linear_spec import LinearSpec, NormSpec
from paceline.runner.weights.quantized_matrix import OrderedMatrix
from paceline.runner.weights.renewal import Lazy

ORDERED: Sequence[type[LinearKernel]] = (
    Int4Panels,
    PanelsDecoded,
    Humming,
    CodedFew,
    CodedDecoded,
)


class Ordered(LinearKernel):
    """Puts inputs into the order of the weights, as GPTQ with act order has them, for the kernels
    that compute these."""

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
        kernels = KernelChoice(inner, use, ORDERED)
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


# In order: the first that accepts a linear and a number of rows computes it.
KERNELS: tuple[type[LinearKernel], ...] = (
    OneRow,
    Bf16Gemv,
    SplitK,
    Streamed,
    Library,
    Fp8Streamed,
    Fp8Gemv,
    Fp8Blocks,
    ScaledFew,
    Fp8Library,
    Int8Library,
    ScaledDecoded,
    Int4Gemv,
    Int4Panels,
    PanelsDecoded,
    Humming,
    CodedFew,
    CodedDecoded,
    Ordered,
)
# Those whose rows have the same bits in any company. Other weights are decoded.
INVARIANT = tuple(kind for kind in (FixedTiles, FixedFp8, *KERNELS) if kind.is_invariant)


class CudaLinear(Lazy):
    """A linear on a GPU: its weights, and the kernels that compute it.

    Weights are kept in their format if a kernel computes any number of their rows, and decoded
    otherwise.
    """

    def __init__(self, parts: LinearParts, kinds: Sequence[type[LinearKernel]] = KERNELS) -> None:
        self.weights, self._kinds = LinearWeights.of(parts), kinds
        if not KernelChoice(self.weights, Use.PLAIN, kinds).is_complete:
            self.weights.decode()
        self.choices: dict[Use, KernelChoice] = {}

    @property
    def is_invariant(self) -> bool:
        """Have rows the same bits in any company?"""
        return all(kind.is_invariant for kind in self._kinds)

    def choice(self, use: Use) -> KernelChoice:
        """The kernels for a use, by rows."""
        if use not in self.choices:
            self.choices[use] = KernelChoice(self.weights, use, self._kinds)
        return self.choices[use]

    def complete_like(self, other: "CudaLinear") -> None:
        """Choose kernels for the same uses."""
        self.choices = {use: self.choice(use) for use in other.choices}

    def __call__(self, x: Tensor) -> Tensor:
        return self.choice(Use.PLAIN).of(len(x)).plain(x)

    def add_to(self, total: Tensor, x: Tensor) -> None:
        self.choice(Use.ADDED).of(len(x)).add_to(total, x)


def kernel_norm(factory: LayerFactory[CudaLinear], norm: NormSpec) -> Callable[[Tensor], Tensor]:
    """The norm before a linear that has the norm's `folded` factor, as a kernel of its own."""
    factor, bias = None, None
    if norm.bias is not None:
        factor, bias = factory.factor(norm), factory.read(norm.bias)
    floor, is_centred = norm.floor, norm.centred
    return partial(normalized, floor=floor, factor=factor, bias=bias, is_centred=is_centred)


def apart(
    factory: LayerFactory[CudaLinear], norm: NormSpec | None
) -> tuple[Callable[[Tensor], Tensor], NormSpec | None]:
    """What is computed before a `NormedLinear`, and the norm that is left for it: it computes no
    layer norms, and adds no biases."""
    if norm is None or not (norm.centred or norm.bias):
        return whole, norm
    return kernel_norm(factory, norm), None


class NormedLinear:
    """A linear of the normalised residual stream, or act(gate) * up of it. Without a norm, it is a
    linear of the residual stream itself.

    In steps with adapters, the linear is that of all adapters too, whatever the number of rows.
    """

    def __init__(
        self,
        linear: CudaLinear,
        norm: NormSpec | None,
        widen: Widen = not_adapted,
        is_gated: bool = False,
    ) -> None:
        self._adapted = widen(linear)
        normed = Use.GATED if is_gated else Use.NORMED
        self._kernels = linear.choice(Use.PLAIN if norm is None else normed)
        self._linear, self._floor = linear, None if norm is None else norm.floor

    def is_ordered(self, rows: int) -> bool:
        """Whether the next kernel starts when all kernels before this linear have ended."""
        return self._floor is not None and self._kernels.of(rows).is_ordered

    def __str__(self) -> str:
        return str(self._kernels)

    def __call__(
        self, hidden: Tensor, adapters: Tensor | None = None
    ) -> tuple[Tensor, DeferredNorm]:
        if self._floor is None:
            return self._plain(hidden, adapters), DeferredNorm(hidden, 0.0, 0)
        if adapters is None:
            return self._kernels.of(len(hidden)).normed(hidden, self._floor)
        x, late = deferred(hidden, self._floor, self._linear.weights, self._linear.is_invariant)
        return with_room(self._adapted)(x, adapters), late

    def finished(self, hidden: Tensor) -> Tensor:
        """The linear, after which no norm is left."""
        found, late = self(hidden)
        if late.width:
            divide(found, late)
        return found

    def _plain(self, x: Tensor, adapters: Tensor | None) -> Tensor:
        if adapters is None:
            return self._kernels.of(len(x)).plain(x)
        return with_room(self._adapted)(x, adapters)

    def gated(self, hidden: Tensor, is_silu: bool, adapters: Tensor | None = None) -> Tensor:
        """Return act(gate) * up, of a linear that computes both."""
        if self._floor is None:
            return gated(self._plain(hidden, adapters), is_silu, DeferredNorm(hidden, 0.0, 0))
        if adapters is None:
            return self._kernels.of(len(hidden)).gated(hidden, self._floor, is_silu)
        x, late = deferred(hidden, self._floor, self._linear.weights, self._linear.is_invariant)
        return with_room(self._adapted).gated(x, adapters, is_silu, late)


@dataclass(frozen=True, slots=True, eq=False)
class ResidualParts:
    """A linear for the residual stream, and the norm after it if the architecture has one."""

    linear: CudaLinear
    adapted: CudaAdaptedLinear | None
    norm: tuple[Tensor, float, float] | None  # factors, floor, and the scale of the sum

    @staticmethod
    def of(
        factory: LayerFactory[CudaLinear],
        spec: LinearSpec,
        norm: NormSpec | None,
        widen: Widen = not_adapted,
        scale: float = 1.0,
    ) -> "ResidualParts":
        linear = factory.linear(spec)
        factors = None if norm is None else (factory.factor(norm), norm.floor, scale)
        return ResidualParts(linear, widen(linear), factors)


class ResidualLinear:
    """Adds a linear to the residual stream, after the norm if there is one."""

    def __init__(self, parts: ResidualParts) -> None:
        self._adapted, self._norm = parts.adapted, parts.norm
        self._kernels = parts.linear.choice(Use.ADDED if parts.norm is None else Use.PLAIN)

    def __str__(self) -> str:
        return str(self._kernels)

    def __call__(self, hidden: Tensor, x: Tensor, adapters: Tensor | None = None) -> None:
        if adapters is not None:
            self._add_adapted(hidden, x, adapters)
        elif self._norm is not None:
            add_normalized(hidden, self._kernels.of(len(x)).plain(x), *self._norm)
        else:
            self._kernels.of(len(x)).add_to(hidden, x)

    def _add_adapted(self, hidden: Tensor, x: Tensor, adapters: Tensor) -> None:
        adapted = with_room(self._adapted)
        if self._norm is None:
            adapted.add_to(hidden, x, adapters)
        else:
            add_normalized(hidden, adapted(x, adapters), *self._norm)


class SummedResidual:
    """The same over the inputs of all ranks."""

    def __init__(self, parts: ResidualParts, summed: Callable[[Tensor], Tensor]) -> None:
        self._linear, self._adapted, self._norm = parts.linear, parts.adapted, parts.norm
        self._summed = summed

    def __str__(self) -> str:
        return str(self._linear.choice(Use.PLAIN))

    def __call__(self, hidden: Tensor, x: Tensor, adapters: Tensor | None = None) -> None:
        if adapters is None:
            total = self._summed(self._linear(x))
        else:
            total = self._summed(with_room(self._adapted)(x, adapters))
        if self._norm is None:
            hidden.add_(total)
        else:
            add_normalized(hidden, total, *self._norm)


def residual_linear(
    factory: LayerFactory[CudaLinear],
    spec: LinearSpec,
    norm: NormSpec | None,
    widen: Widen = not_adapted,
    scale: float = 1.0,
) -> ResidualLinear | SummedResidual:
    """What adds a linear of this rank, or of all ranks, to the residual stream. With a norm, the
    residual stream has the scale afterwards."""
    parts = ResidualParts.of(factory, spec, norm, widen, scale)
    if factory.group is not None:
        return SummedResidual(parts, factory.sum_over_ranks())
    return ResidualLinear(parts)


def with_room(linear: CudaAdaptedLinear | None) -> CudaAdaptedLinear:
    assert linear is not None, "this model was loaded without room for adapters"
    return linear
