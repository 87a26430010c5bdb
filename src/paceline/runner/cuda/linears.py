"""Linears of a layer on a GPU, fused with the norm, activation or sum around them."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.runner.cuda.adapters import CudaAdaptedLinear, Widen, not_adapted
from paceline.runner.cuda.kernels.experts import choose_experts, gated_by_experts, summed_by_experts
from paceline.runner.cuda.kernels.layers import DeferredNorm, add_normalized, gated, normalized
from paceline.runner.cuda.kernels.one_row import add, normed, takes
from paceline.runner.cuda.kernels.split_k import SplitKLinear
from paceline.runner.cuda.kernels.streamed_gemm import StreamedLinear
from paceline.runner.layers.factory import LayerFactory
from paceline.runner.layers.linear import DenseLinear, Linear
from paceline.runner.models.architecture import LinearSpec, MoESpec, NormSpec

# Up to so many rows, a norm after the linear is cheaper than a kernel before it. With more inputs
# the limit is lower: every program that needs the length of a row reads the whole row.
LATE_ROWS, LATE_WIDTH, LATE_ROWS_WIDE = 512, 2048, 64

# Up to so many rows, the time is that of reading the weights, and the streamed kernel is faster.
STREAMED_ROWS, STREAMED_SUM_ROWS, STREAMED_GATED_ROWS = 64, 128, 192


class NormedLinear:
    """A linear of the normalised residual stream.

    With few rows, the norm is applied after the linear, by the next kernel, or inside the
    product. With many rows, one kernel before the linear is cheaper.

    Attention may read the store while a linear of few rows runs, so that product is ordered: all
    earlier kernels have ended when the next one starts.

    In steps with adapters, the linear is that of all adapters too, whatever the number of rows.
    """

    def __init__(
        self, linear: Linear, norm: NormSpec, widen: Widen = not_adapted, is_gated: bool = False
    ) -> None:
        assert isinstance(linear, DenseLinear)
        self._adapted = widen(linear)
        self._linear, self._streamed = linear, StreamedLinear(linear, is_gated)
        self._floor = norm.floor

    def __call__(self, hidden: Tensor, places: Tensor | None = None) -> tuple[Tensor, DeferredNorm]:
        if places is None and takes(*hidden.shape):
            found = normed(hidden, self._linear, self._floor, is_ordered=True)
            return found, DeferredNorm(hidden, 0.0, 0)
        x, late = self._normed(hidden)
        if places is not None:
            return with_room(self._adapted)(x, places), late
        if late.width and self._streamed.takes(len(hidden), STREAMED_ROWS):
            return self._streamed(hidden), late
        return self._linear(x), late

    def _normed(self, hidden: Tensor) -> tuple[Tensor, DeferredNorm]:
        """What goes into the linear, and the norm that is left for the next kernel."""
        most = LATE_ROWS if hidden.shape[1] <= LATE_WIDTH else LATE_ROWS_WIDE
        is_narrow = hidden.dtype == torch.float16  # without a norm, products exceed its range
        if len(hidden) > most or is_narrow or self._linear.bias is not None:
            return normalized(hidden, self._floor), DeferredNorm(hidden, 0.0, 0)
        return hidden, DeferredNorm(hidden, self._floor, hidden.shape[1])

    def gated(self, hidden: Tensor, is_silu: bool, places: Tensor | None = None) -> Tensor:
        """Return act(gate) * up, of a linear that computes both."""
        if places is not None:
            x, late = self._normed(hidden)
            return with_room(self._adapted).gated(x, places, is_silu, late)
        if takes(*hidden.shape):
            return normed(hidden, self._linear, self._floor, is_silu)
        if self._streamed.takes(len(hidden), STREAMED_GATED_ROWS):
            if self._streamed.can_norm:
                return self._streamed.gated(hidden, is_silu, self._floor)
            return self._streamed.gated(normalized(hidden, self._floor), is_silu)
        found, late = self(hidden)
        return gated(found, is_silu, late)


@dataclass(frozen=True, slots=True, eq=False)
class ResidualParts:
    """A linear for the residual stream, and the norm after it if the architecture has one."""

    linear: DenseLinear
    adapted: CudaAdaptedLinear | None
    norm: tuple[Tensor, float] | None  # factors and floor

    @staticmethod
    def of(
        factory: LayerFactory,
        spec: LinearSpec,
        norm: NormSpec | None,
        widen: Widen = not_adapted,
    ) -> "ResidualParts":
        linear = factory.linear(spec)
        assert isinstance(linear, DenseLinear)
        own = None if norm is None else (factory.factor(norm), norm.floor)
        return ResidualParts(linear, widen(linear), own)


class ResidualLinear:
    """Adds a linear to the residual stream, after the norm if there is one."""

    def __init__(self, parts: ResidualParts) -> None:
        self._linear, self._adapted, self._norm = parts.linear, parts.adapted, parts.norm
        self._split, self._streamed = SplitKLinear(parts.linear), StreamedLinear(parts.linear)

    def __call__(self, hidden: Tensor, x: Tensor, places: Tensor | None = None) -> None:
        if places is not None:
            self._add_adapted(hidden, x, places)
        elif self._norm is not None:
            add_normalized(hidden, self._linear(x), *self._norm)
        elif takes(*x.shape):
            add(hidden, x, self._linear)
        elif self._split.takes(len(x)):
            self._split.add(hidden, x)
        elif self._streamed.takes(len(x), STREAMED_SUM_ROWS):
            self._streamed.add_to(hidden, x)
        else:
            self._linear.add_to(hidden, x)

    def _add_adapted(self, hidden: Tensor, x: Tensor, places: Tensor) -> None:
        adapted = with_room(self._adapted)
        if self._norm is None:
            adapted.add_to(hidden, x, places)
        else:
            add_normalized(hidden, adapted(x, places), *self._norm)


class SummedResidual:
    """The same over the inputs of all ranks."""

    def __init__(self, parts: ResidualParts, summed: Callable[[Tensor], Tensor]) -> None:
        self._linear, self._adapted, self._norm = parts.linear, parts.adapted, parts.norm
        self._summed = summed

    def __call__(self, hidden: Tensor, x: Tensor, places: Tensor | None = None) -> None:
        if places is None:
            total = self._summed(self._linear(x))
        else:
            total = self._summed(with_room(self._adapted)(x, places))
        if self._norm is None:
            hidden.add_(total)
        else:
            add_normalized(hidden, total, *self._norm)


def residual_linear(
    factory: LayerFactory,
    spec: LinearSpec,
    norm: NormSpec | None,
    widen: Widen = not_adapted,
) -> ResidualLinear | SummedResidual:
    """What adds a linear of this rank, or of all ranks, to the residual stream."""
    parts = ResidualParts.of(factory, spec, norm, widen)
    if factory.group is not None:
        return SummedResidual(parts, factory.sum_over_ranks())
    return ResidualLinear(parts)


def with_room(linear: CudaAdaptedLinear | None) -> CudaAdaptedLinear:
    assert linear is not None, "this model was loaded without room for adapters"
    return linear


class CudaMoE:
    """The host waits for nothing: which expert computes what is known on the GPU alone."""

    def __init__(self, factory: LayerFactory, spec: MoESpec) -> None:
        self._spec, self._floor = spec, spec.norm.floor
        self._is_silu = spec.activation == "silu"
        self._router = factory.router(spec.router, spec.norm).t().contiguous()  # [width, experts]
        biases = spec.router.biases
        self._router_bias = factory.joined(biases) if biases else None  # [experts]
        self._gate_up = _stacked(factory, [one.gate_up for one in spec.experts], spec.norm)
        self._down = _stacked(factory, [one.down for one in spec.experts])
        self._gate_up_bias = _biases(factory, [one.gate_up for one in spec.experts])
        self._down_bias = _biases(factory, [one.down for one in spec.experts])
        self._has_parts, self._summed = factory.group is not None, factory.sum_over_ranks()
        self._every = torch.arange(
            len(spec.experts) + 1, dtype=torch.int32, device=self._router.device
        )

    def add_to(self, hidden: Tensor, _places: Tensor | None = None) -> None:
        """Add the mixture of the residual stream to it. Experts are not adapted."""
        x, spec = normalized(hidden, self._floor), self._spec
        scores = x.float() @ self._router
        if self._router_bias is not None:
            scores += self._router_bias
        choice = choose_experts(scores, spec.chosen, spec.shares_sum_to_one, self._every)
        gate_up = self._gate_up, choice, self._is_silu, self._gate_up_bias, spec.clamp
        inner = gated_by_experts(x, *gate_up)
        total = torch.zeros_like(hidden) if self._has_parts else hidden
        summed_by_experts(total, inner, self._down, choice, self._down_bias)
        if self._has_parts:
            hidden.add_(self._summed(total))


def _stacked(
    factory: LayerFactory, linears: list[LinearSpec], before: NormSpec | None = None
) -> Tensor:
    """The weights of several linears, [linears, outputs, inputs]."""
    shape = len(linears), linears[0].outputs, linears[0].inputs
    found = torch.empty(shape, dtype=factory.dtype, device=factory.device)
    factor = None if before is None else factory.factor(before)  # [inputs]
    for at, linear in enumerate(linears):
        weight = factory.joined(linear.weights)
        found[at] = weight if factor is None else weight * factor
    return found


def _biases(factory: LayerFactory, linears: list[LinearSpec]) -> Tensor | None:
    """The biases of several linears, [linears, outputs] in float32; None if they have none."""
    if not linears[0].biases:
        return None
    return torch.stack([factory.joined(linear.biases) for linear in linears])
