"""Mamba-2."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.runner.layers.factory import LayerFactory
from paceline.runner.layers.linear import Linear
from paceline.runner.layers.mixers.convolution import CausalConvolution
from paceline.runner.layers.mixers.mixer import LayerContext
from paceline.runner.layers.mixers.recurrence import Recurrence, advance
from paceline.runner.layers.norm import Norm, UnscaledNorm
from paceline.runner.models.states.mamba2 import GatedNorm, Mamba2Spec
from paceline.runner.tensors import split

Gated = Callable[[Tensor, Tensor], Tensor]  # of values and gates, [positions, width] each


class Mamba2:
    """See `Mamba2Spec`."""

    def __init__(self, factory: LayerFactory[Linear], spec: Mamba2Spec, layer: int) -> None:
        self._spec, self._layer = spec, layer
        self._inputs = factory.linear(spec.inputs, spec.norm)
        self._output = factory.summed(spec.output)
        self._convolution = CausalConvolution(factory, (spec.convolution,), spec.bias)
        self._speed = factory.read(spec.log_decay).exp_().neg_()  # [heads]
        self._bias = factory.read(spec.time_bias)  # [heads]
        self._skip = factory.read(spec.skip).unsqueeze(1)  # [heads, 1]
        self._multipliers = None if not spec.multipliers else by_output(spec).to(factory.dtype)
        self._gated = plain if spec.gated_norm is None else normed(factory, spec.gated_norm)

    def __call__(self, x: Tensor, context: LayerContext) -> Tensor:
        spec, rows = self._spec, context.rows
        states, tails = rows.of(self._layer)
        inner, shared = spec.heads * spec.head_dim, spec.groups * spec.state_size
        found = self._inputs(x)
        if self._multipliers is not None:
            found.mul_(self._multipliers)
        gate, mixed, time = split(found, [inner, spec.channels, spec.heads], 1)
        mixed = F.silu(self._convolution(mixed, rows, tails)).float()
        value, key, query = split(mixed, [inner, shared, shared], 1)
        time = F.softplus(time.float() + self._bias).clamp_(*spec.limits).unsqueeze(-1)
        value = value.view(len(x), spec.heads, spec.head_dim)
        key, query = (
            one.view(len(x), spec.groups, -1).repeat_interleave(spec.heads // spec.groups, dim=1)
            for one in (key, query)
        )
        decay = time * self._speed.unsqueeze(1)
        seen = advance(rows, states, Recurrence(query, key, value * time, decay))
        seen.addcmul_(value, self._skip)
        return self._gated(seen.view(len(x), -1).to(x.dtype), gate)

    def add_to(self, hidden: Tensor, mixed: Tensor) -> None:
        self._output.add_to(hidden, mixed)


def by_output(spec: Mamba2Spec) -> Tensor:
    """The multipliers of all outputs of `inputs`."""
    inner, shared = spec.heads * spec.head_dim, spec.groups * spec.state_size
    sizes = torch.tensor([inner, inner, shared, shared, spec.heads])
    return torch.tensor(spec.multipliers).repeat_interleave(sizes)


def plain(x: Tensor, gate: Tensor) -> Tensor:
    return x * F.silu(gate)


def normed(factory: LayerFactory[Linear], spec: GatedNorm) -> Gated:
    factor = factory.read(spec.weight).view(spec.groups, -1)  # [groups, width of each]
    width = factor.shape[1]
    unscaled = UnscaledNorm((width * spec.eps) ** 0.5, factory.device)
    norm = Norm(unscaled, (factor * width**0.5).to(factory.dtype))

    def of_groups(x: Tensor) -> Tensor:
        return norm(x.view(len(x), *factor.shape)).flatten(1)

    if spec.gates_first:
        return lambda x, gate: of_groups(plain(x, gate))
    return lambda x, gate: plain(of_groups(x), gate)
