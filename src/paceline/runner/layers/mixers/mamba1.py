"""Mamba-1."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.runner.layers.factory import LayerFactory
from paceline.runner.layers.linear import Linear
from paceline.runner.layers.mixers.convolution import CausalConvolution
from paceline.runner.layers.mixers.mixer import LayerContext
from paceline.runner.layers.mixers.recurrence import CHUNK, by_rows
from paceline.runner.models.states.mamba1 import Mamba1Spec
from paceline.runner.tensors import split


class Mamba1:
    """See `Mamba1Spec`."""

    def __init__(self, factory: LayerFactory[Linear], spec: Mamba1Spec, layer: int) -> None:
        self._layer = layer
        self._inputs = factory.linear(spec.inputs, spec.norm)
        self._convolution = CausalConvolution(factory, (spec.convolution,), spec.bias)
        self._selection = factory.linear(spec.selection)
        self._parts = [one.width for one in (spec.time_norm, spec.key_norm, spec.query_norm)]
        self._time_norm = factory.input_norm(spec.time_norm)
        self._times = factory.linear(spec.times, spec.time_norm)
        self._bias = factory.read(spec.time_bias)  # [channels]
        self._key_norm = factory.norm(spec.key_norm)
        self._query_norm = factory.norm(spec.query_norm)
        self._speed = factory.read(spec.log_decay).exp_().neg_()  # [channels, state_size]
        self._skip = factory.read(spec.skip)  # [channels]
        self._output = factory.summed(spec.output)

    def __call__(self, x: Tensor, context: LayerContext) -> Tensor:
        rows = context.rows
        states, tails = rows.of(self._layer)
        value, gate = self._inputs(x).chunk(2, 1)
        value = F.silu(self._convolution(value, rows, tails))
        time, key, query = split(self._selection(value), self._parts, 1)
        time = F.softplus(self._times(self._time_norm(time)).float() + self._bias)
        value = value.float()
        inputs = Selection(
            query=self._query_norm(query).float(),
            key=self._key_norm(key).float(),
            value=value * time,
            time=time,
            speed=self._speed,
        )
        seen = by_rows(rows, states, inputs, step, run).addcmul_(value, self._skip)
        return seen.to(x.dtype).mul_(F.silu(gate))

    def add_to(self, hidden: Tensor, mixed: Tensor) -> None:
        self._output.add_to(hidden, mixed)


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """The inputs of a recurrence in which each number of a state has a decay, in float32."""

    query: Tensor  # [positions, state_size]
    key: Tensor  # [positions, state_size]
    value: Tensor  # [positions, channels], times `time`
    time: Tensor  # [positions, channels]
    speed: Tensor  # [channels, state_size]; a decay is exp(time * speed)

    def at(self, positions: Tensor | slice) -> "Selection":
        query, key = self.query[positions], self.key[positions]
        return Selection(query, key, self.value[positions], self.time[positions], self.speed)

    def decays(self) -> Tensor:
        """[positions, channels, state_size]"""
        return (self.time.unsqueeze(2) * self.speed).exp_()

    def added(self) -> Tensor:
        """[positions, channels, state_size]"""
        return self.value.unsqueeze(2) * self.key.unsqueeze(1)

    def read(self, states: Tensor) -> Tensor:
        """What positions read of their states, [positions, channels]."""
        return (states @ self.query.unsqueeze(2)).squeeze(2)


def step(state: Tensor, inputs: Selection) -> Tensor:
    """Advance states [n, channels, state_size] by one position each, in place."""
    state.mul_(inputs.decays()).add_(inputs.added())
    return inputs.read(state)


def run(state: Tensor, inputs: Selection) -> Tensor:
    """Advance one state [channels, state_size] by several positions, in place."""
    found: list[Tensor] = []
    for first in range(0, len(inputs.key), CHUNK):
        part = inputs.at(slice(first, first + CHUNK))
        states, before = part.added(), state
        for after, decay in zip(states, part.decays(), strict=True):
            before = after.addcmul_(decay, before)
        state.copy_(before)
        found.append(part.read(states))
    return torch.cat(found)
