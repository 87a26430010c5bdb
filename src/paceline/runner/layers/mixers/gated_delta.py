"""Gated delta nets."""

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.runner.layers.factory import LayerFactory
from paceline.runner.layers.linear import Linear
from paceline.runner.layers.mixers.convolution import CausalConvolution
from paceline.runner.layers.mixers.mixer import LayerContext
from paceline.runner.layers.mixers.recurrence import Recurrence, advance
from paceline.runner.models.states.gated_delta import GatedDeltaSpec
from paceline.runner.tensors import split, vector_norm

LEAST_LENGTH = 1e-6**0.5  # that queries and keys are divided by


class GatedDelta:
    """See `GatedDeltaSpec`."""

    def __init__(self, factory: LayerFactory[Linear], spec: GatedDeltaSpec, layer: int) -> None:
        self._spec, self._layer = spec, layer
        order = by_kind(spec) if spec.by_key_head else None
        self.inputs = factory.linear(spec.inputs, spec.norm, order)
        self._output = factory.summed(spec.output)
        self._convolution = CausalConvolution(factory, (spec.convolution,))
        self._speed = factory.read(spec.log_decay).exp_().neg_()  # [value_heads]
        self._bias = factory.read(spec.decay_bias)  # [value_heads]
        self._norm = factory.norm(spec.head_norm)

    def __call__(self, x: Tensor, context: LayerContext) -> Tensor:
        spec, rows = self._spec, context.rows
        states, tails = rows.of(self._layer)
        heads, keys, values = spec.value_heads, spec.key_heads, spec.value_heads * spec.value_dim
        qkv, gate, rate, decay = split(self.inputs(x), [spec.channels, values, heads, heads], 1)
        qkv = F.silu(self._convolution(qkv, rows, tails)).float()
        sizes = [keys * spec.key_dim] * 2
        query, key, value = split(qkv, [*sizes, values], 1)
        query, key = (
            unit(one.view(len(x), keys, -1)).repeat_interleave(heads // keys, dim=1)
            for one in (query, key)
        )
        inputs = Recurrence(
            query=query.mul_(spec.key_dim**-0.5),
            key=key,
            value=value.view(len(x), heads, -1),
            decay=(F.softplus(decay.float() + self._bias) * self._speed).unsqueeze(-1),
            rate=rate.float().sigmoid_().unsqueeze(-1),
        )
        seen = self._norm(advance(rows, states, inputs).to(x.dtype))
        return seen.flatten(1).mul_(F.silu(gate))  # [positions, values]

    def add_to(self, hidden: Tensor, mixed: Tensor) -> None:
        self._output.add_to(hidden, mixed)


def unit(x: Tensor) -> Tensor:
    """Vectors of length 1; short ones stay shorter."""
    length = vector_norm(x, dim=-1, keepdim=True)
    return x / torch.hypot(length, length.new_tensor(LEAST_LENGTH))


def by_kind(spec: GatedDeltaSpec) -> Tensor:
    """Where the outputs of `inputs` come from that are ordered by key head, [outputs]."""
    shared = spec.value_heads // spec.key_heads  # heads of values
    values = shared * spec.value_dim
    first = 0
    found: list[Tensor] = []
    for sizes in ((spec.key_dim, spec.key_dim, values, values), (shared, shared)):
        count = spec.key_heads * sum(sizes)
        outputs = torch.arange(first, first + count).view(spec.key_heads, -1)
        found += [one.flatten() for one in split(outputs, list(sizes), 1)]
        first += count
    return torch.cat(found)
