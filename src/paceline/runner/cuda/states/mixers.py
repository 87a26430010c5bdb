"""Layers with states on a GPU, by their descriptions."""

from typing import Any, Protocol

from torch import Tensor

from paceline.runner.cuda.linears import CudaLinear, NormedLinear
from paceline.runner.cuda.states.chunked import advance
from paceline.runner.cuda.states.convolution import Convolution
from paceline.runner.cuda.states.gated_norm import GroupNorm, gate_and_norm
from paceline.runner.cuda.states.recurrence import Decay, RecurrenceSizes, step
from paceline.runner.cuda.states.rows import CudaStateRows
from paceline.runner.layers.factory import LayerFactory
from paceline.runner.layers.states.gated_delta import by_kind
from paceline.runner.layers.states.mamba2 import by_output
from paceline.runner.models.states.gated_delta import GatedDeltaSpec
from paceline.runner.models.states.mamba2 import Mamba2Spec
from paceline.runner.models.states.short_conv import ShortConvSpec
from paceline.runner.models.states.state_sizes import StateSpec
from paceline.runner.models.tensor_spec import TensorSpec


class CudaStateMixer(Protocol):
    """A layer with a state, as `StateSpec` describes it."""

    inputs: NormedLinear

    def __call__(self, hidden: Tensor, rows: CudaStateRows) -> Tensor:
        """Everything but the linear `output`, of the residual stream. Advances the states of the
        rows."""
        ...


class Recurrent:
    """A recurrence between a convolution and a gated norm."""

    def __init__(
        self,
        inputs: NormedLinear,
        layer: int,
        convolution: Convolution,
        recurrence: tuple[RecurrenceSizes, Decay],
        gates: tuple[int, float],
        norm: GroupNorm | None,
    ) -> None:
        """`gates`: where they begin among the inputs, and a factor of them."""
        self.inputs, self._layer, self._norm = inputs, layer, norm
        self._convolution, self._gates = convolution, gates
        self._sizes, self._decay = recurrence

    def __call__(self, hidden: Tensor, rows: CudaStateRows) -> Tensor:
        inputs, sizes = self.inputs.finished(hidden), self._sizes
        states, tails = rows.of_layer(self._layer)
        read = inputs.new_empty((len(inputs), sizes.heads * sizes.value_dim))
        step(inputs, rows, self._layer, self._convolution, sizes, self._decay, read)
        if rows.chunks:
            mixed = self._convolution.empty(inputs)
            self._convolution.chunks(inputs, rows, tails, mixed)
            advance(inputs, mixed, rows, states, sizes, self._decay, read)
        self._convolution.keep(inputs, rows, tails)
        gates, factor = self._gates
        gate_and_norm(read, inputs, rows, gates, self._norm, factor)
        return read


class ShortConvolution:
    """See `ShortConvSpec`."""

    def __init__(self, inputs: NormedLinear, layer: int, convolution: Convolution) -> None:
        self.inputs, self._layer, self._convolution = inputs, layer, convolution

    def __call__(self, hidden: Tensor, rows: CudaStateRows) -> Tensor:
        inputs, convolution = self.inputs.finished(hidden), self._convolution
        (tails,) = rows.of_layer(self._layer)
        found = convolution.empty(inputs)
        if rows.chunks:
            found.zero_()  # some positions belong to no row
        convolution.singles(inputs, rows, tails, found)
        convolution.chunks(inputs, rows, tails, found)
        convolution.keep(inputs, rows, tails)
        return found


def gated_delta(factory: LayerFactory[CudaLinear], spec: GatedDeltaSpec, layer: int) -> Recurrent:
    order = by_kind(spec) if spec.by_key_head else None
    inputs = NormedLinear(factory.linear(spec.inputs, spec.norm, order), spec.norm)
    keys, values = spec.key_heads * spec.key_dim, spec.value_heads * spec.value_dim
    gates, rates = spec.channels, spec.channels + values
    weight = taps(factory, spec.convolution)
    sizes = RecurrenceSizes(
        heads=spec.value_heads,
        shared=spec.value_heads // spec.key_heads,
        key_dim=spec.key_dim,
        value_dim=spec.value_dim,
        query=0,
        key=keys,
        value=2 * keys,
        decay=rates + spec.value_heads,
        rate=rates,
        corrects=True,
    )
    decay = Decay(factory.read(spec.log_decay).exp_().neg_(), factory.read(spec.decay_bias))
    factor = factory.factor(spec.head_norm).repeat(spec.value_heads)
    norm = GroupNorm(factor, spec.value_heads, spec.head_norm.floor, gates_first=False)
    convolution = Convolution(weight.to(factory.dtype), None, unit=2 * keys, width=spec.key_dim)
    return Recurrent(inputs, layer, convolution, (sizes, decay), (gates, 1.0), norm)


def mamba2(factory: LayerFactory[CudaLinear], spec: Mamba2Spec, layer: int) -> Recurrent:
    inputs = NormedLinear(factory.linear(spec.inputs, spec.norm), spec.norm)
    inner, shared = spec.heads * spec.head_dim, spec.groups * spec.state_size
    times = inner + spec.channels
    weight, gate_factor, time_factor = taps(factory, spec.convolution), 1.0, 1.0
    if spec.multipliers:
        weight *= by_output(spec).to(factory.device)[inner:times]
        gate_factor, *_, time_factor = spec.multipliers
    bias = None if spec.bias is None else factory.read(spec.bias).to(factory.dtype)
    sizes = RecurrenceSizes(
        heads=spec.heads,
        shared=spec.heads // spec.groups,
        key_dim=spec.state_size,
        value_dim=spec.head_dim,
        query=inner + shared,
        key=inner,
        value=0,
        decay=times,
        rate=times,
        corrects=False,
    )
    decay = Decay(
        factory.read(spec.log_decay).exp_().neg_(),
        factory.read(spec.time_bias),
        spec.limits,
        time_factor,
        factory.read(spec.skip),
    )
    norm = None
    if (gated := spec.gated_norm) is not None:
        width = inner // gated.groups
        factor = factory.read(gated.weight) * width**0.5
        norm = GroupNorm(factor, gated.groups, (width * gated.eps) ** 0.5, gated.gates_first)
    convolution = Convolution(weight.to(factory.dtype), bias, first=inner)
    return Recurrent(inputs, layer, convolution, (sizes, decay), (0, gate_factor), norm)


def short_conv(
    factory: LayerFactory[CudaLinear], spec: ShortConvSpec, layer: int
) -> ShortConvolution:
    inputs = NormedLinear(factory.linear(spec.inputs, spec.norm), spec.norm)
    weight = taps(factory, spec.convolution).to(factory.dtype)
    bias = None if spec.bias is None else factory.read(spec.bias).to(factory.dtype)
    width = weight.shape[1]
    convolution = Convolution(weight, bias, product=2 * width, gate=width)
    return ShortConvolution(inputs, layer, convolution)


def taps(factory: LayerFactory[CudaLinear], convolution: TensorSpec) -> Tensor:
    """The weights of a convolution, [taps, channels]."""
    return factory.read(convolution)[:, 0].t().contiguous()


MIXERS: dict[type[StateSpec], Any] = {
    GatedDeltaSpec: gated_delta,
    Mamba2Spec: mamba2,
    ShortConvSpec: short_conv,
}
FEATURES = frozenset(
    {
        "layers.attention=none",
        "layers.mlp=none",
        "layers.state",
        *(f"layers.state={kind.FEATURE}" for kind in MIXERS),
    }
)


def state_mixer(factory: LayerFactory[CudaLinear], spec: StateSpec, layer: int) -> CudaStateMixer:
    return MIXERS[type(spec)](factory, spec, layer)
