"""Layers with states on a GPU, by their descriptions."""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from paceline.runner.cuda.linears import CudaLinear, NormedLinear, residual_linear
from paceline.runner.cuda.mixers.mixer import CudaLayerContext, CudaMixer
from paceline.runner.cuda.states.chunked import advance
from paceline.runner.cuda.states.convolution import Convolution
from paceline.runner.cuda.states.drafted import step_with_drafts
from paceline.runner.cuda.states.finish import GroupNorm, OutputGates, finish
from paceline.runner.cuda.states.mamba1 import CudaMamba1
from paceline.runner.cuda.states.recurrence import Decay, RecurrenceSizes, step
from paceline.runner.cuda.states.rows import CudaStateRows
from paceline.runner.layers.factory import LayerFactory
from paceline.runner.layers.mixers.gated_delta import by_kind
from paceline.runner.layers.mixers.mamba2 import by_output
from paceline.runner.models.states.gated_delta import GatedDeltaSpec
from paceline.runner.models.states.kda import KDASpec
from paceline.runner.models.states.mamba1 import Mamba1Spec
from paceline.runner.models.states.mamba2 import Mamba2Spec
from paceline.runner.models.states.short_conv import ShortConvSpec
from paceline.runner.models.states.state_sizes import StateSpec
from paceline.runner.models.tensor_spec import TensorSpec


class BetweenLinears(Protocol):
    """A layer with a state between its two linears."""

    def __call__(self, inputs: Tensor, rows: CudaStateRows, layer: int) -> Tensor:
        """From outputs of the first linear to inputs of the last one, [positions, ...]. Advances
        the states of the rows, or keeps the inputs of those with drafts."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Narrow:
    """A vector among the inputs, and a linear of it."""

    at: slice
    linear: CudaLinear


class Recurrent:
    """A recurrence between a convolution and a gated norm."""

    def __init__(
        self,
        convolution: Convolution,
        sizes: RecurrenceSizes,
        decay: Decay,
        gates: OutputGates,
    ) -> None:
        self._convolution, self._sizes, self._decay = convolution, sizes, decay
        self._gates = gates

    def __call__(self, inputs: Tensor, rows: CudaStateRows, layer: int) -> Tensor:
        convolution, sizes, (state, tails) = self._convolution, self._sizes, rows.of_layer(layer)
        read = inputs.new_empty((len(inputs), sizes.heads * sizes.value_dim))
        if rows.drafts is None and not convolution.is_fixed:
            step(inputs, rows, (state, tails), convolution, sizes, self._decay, read)
        else:
            step_with_drafts(inputs, rows, layer, convolution, sizes, self._decay, read)
        if rows.chunks and not convolution.is_fixed:
            mixed = convolution.empty(inputs)
            convolution.chunks(inputs, rows, tails, mixed)
            advance(inputs, mixed, rows, state, sizes, self._decay, read)
        finish(read, inputs, rows, self._gates, convolution, layer)
        return read


class KimiDelta:
    """A recurrence whose decays and gates are linears of narrow vectors among the inputs."""

    def __init__(self, recurrent: Recurrent, decays: Narrow, gates: Narrow) -> None:
        self._recurrent, self._narrow = recurrent, (decays, gates)

    def __call__(self, inputs: Tensor, rows: CudaStateRows, layer: int) -> Tensor:
        wide = [one.linear(inputs[:, one.at].contiguous()) for one in self._narrow]
        return self._recurrent(torch.cat((inputs, *wide), dim=1), rows, layer)


class ShortConvolution:
    """A convolution between gates."""

    def __init__(self, convolution: Convolution) -> None:
        self._convolution = convolution

    def __call__(self, inputs: Tensor, rows: CudaStateRows, layer: int) -> Tensor:
        convolution, (tails,) = self._convolution, rows.of_layer(layer)
        found = convolution.empty(inputs)
        if not rows.is_decode:
            found.zero_()  # some positions belong to no row
        convolution.short(inputs, rows, tails, found)
        convolution.chunks(inputs, rows, tails, found)
        convolution.keep(inputs, rows, layer)
        return found


def gated_delta(factory: LayerFactory[CudaLinear], spec: GatedDeltaSpec) -> Recurrent:
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
    how: dict[str, Any] = {
        "unit": 2 * keys,
        "width": spec.key_dim,
        "is_fixed": factory.is_invariant,
    }
    convolution = Convolution(weight.to(factory.dtype), None, **how)
    return Recurrent(convolution, sizes, decay, OutputGates(norm, gates))


def kda(factory: LayerFactory[CudaLinear], spec: KDASpec) -> KimiDelta:
    width, dim, heads = spec.width, spec.head_dim, spec.heads
    rates = 3 * width + dim
    narrow = rates + heads  # of gates
    decays, gates = narrow + dim, narrow + dim + width  # behind the inputs
    sizes = RecurrenceSizes(
        heads=heads,
        shared=1,
        key_dim=dim,
        value_dim=dim,
        query=0,
        key=width,
        value=2 * width,
        decay=decays,
        rate=rates,
        corrects=True,
        by_key=True,
    )
    speed = factory.read(spec.log_decay).flatten().exp_().neg_()
    weight = factory.joined(spec.convolutions)[:, 0].t().contiguous().to(factory.dtype)
    factor = factory.factor(spec.head_norm).repeat(heads)
    norm = GroupNorm(factor, heads, spec.head_norm.floor, gates_first=False)
    how: dict[str, Any] = {"unit": 2 * width, "width": dim, "is_fixed": factory.is_invariant}
    recurrent = Recurrent(
        Convolution(weight, None, **how),
        sizes,
        Decay(speed, factory.read(spec.decay_bias)),
        OutputGates(norm, gates, is_sigmoid=True),
    )
    of_decays = Narrow(slice(rates - dim, rates), factory.linear(spec.decay))
    of_gates = Narrow(slice(narrow, narrow + dim), factory.linear(spec.gate))
    return KimiDelta(recurrent, of_decays, of_gates)


def mamba2(factory: LayerFactory[CudaLinear], spec: Mamba2Spec) -> Recurrent:
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
    how: dict[str, Any] = {"first": inner, "is_fixed": factory.is_invariant}
    convolution = Convolution(weight.to(factory.dtype), bias, **how)
    return Recurrent(convolution, sizes, decay, OutputGates(norm, 0, gate_factor))


def short_conv(factory: LayerFactory[CudaLinear], spec: ShortConvSpec) -> ShortConvolution:
    weight = taps(factory, spec.convolution).to(factory.dtype)
    bias = None if spec.bias is None else factory.read(spec.bias).to(factory.dtype)
    width = weight.shape[1]
    how: dict[str, Any] = {"product": 2 * width, "gate": width, "is_fixed": factory.is_invariant}
    convolution = Convolution(weight, bias, **how)
    return ShortConvolution(convolution)


def taps(factory: LayerFactory[CudaLinear], convolution: TensorSpec) -> Tensor:
    """The weights of a convolution, [taps, channels]."""
    return factory.read(convolution)[:, 0].t().contiguous()


KINDS: dict[type[StateSpec], Any] = {
    GatedDeltaSpec: gated_delta,
    KDASpec: kda,
    Mamba1Spec: CudaMamba1,
    Mamba2Spec: mamba2,
    ShortConvSpec: short_conv,
}
FEATURES = frozenset(
    {
        "layers.attention=none",
        "layers.mlp=none",
        "layers.state",
        *(f"layers.state={kind.FEATURE}" for kind in KINDS),
    }
)


class CudaStateMixer(CudaMixer):
    """A layer with a state, as `StateSpec` describes it. Its linears are not adapted."""

    def __init__(self, factory: LayerFactory[CudaLinear], spec: StateSpec, layer: int) -> None:
        order = by_kind(spec) if isinstance(spec, GatedDeltaSpec) and spec.by_key_head else None
        linear = factory.linear(spec.inputs, spec.norm, order)
        self._inputs, self._layer = NormedLinear(linear, spec.norm), layer
        self._between: BetweenLinears = KINDS[type(spec)](factory, spec)
        self._output = residual_linear(factory, spec.output, None)

    def __call__(self, hidden: Tensor, step: CudaLayerContext) -> Tensor:
        assert step.states is not None, "a step without states"
        inputs = self._inputs.finished(hidden)
        return self._between(inputs, step.states, self._layer)

    def add_to(self, hidden: Tensor, mixed: Tensor, adapters: Tensor | None) -> None:
        self._output(hidden, mixed)

    def kernels(self) -> dict[str, str]:
        return {"state inputs": str(self._inputs), "state output": str(self._output)}
