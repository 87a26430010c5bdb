"""Kimi Delta Attention (KDA)."""

import torch.nn.functional as F
from torch import Tensor

from paceline.runner.layers.factory import LayerFactory
from paceline.runner.layers.linear import Linear
from paceline.runner.layers.mixers.convolution import CausalConvolution
from paceline.runner.layers.mixers.gated_delta import unit
from paceline.runner.layers.mixers.mixer import LayerContext
from paceline.runner.layers.mixers.recurrence import Recurrence, advance
from paceline.runner.models.states.kda import KDASpec
from paceline.runner.tensors import split


class KDA:
    """See `KDASpec`."""

    def __init__(self, factory: LayerFactory[Linear], spec: KDASpec, layer: int) -> None:
        self._spec, self._layer = spec, layer
        self._inputs = factory.linear(spec.inputs, spec.norm)
        self._decay, self._gate = factory.linear(spec.decay), factory.linear(spec.gate)
        self._output = factory.summed(spec.output)
        self._convolution = CausalConvolution(factory, spec.convolutions)
        self._speed = factory.read(spec.log_decay).view(-1, 1).exp_().neg_()  # [heads, 1]
        self._bias = factory.read(spec.decay_bias)  # [heads * head_dim]
        self._norm = factory.norm(spec.head_norm)

    def __call__(self, x: Tensor, context: LayerContext) -> Tensor:
        spec, rows = self._spec, context.rows
        states, tails = rows.of(self._layer)
        heads, dim = spec.heads, spec.head_dim
        qkv, decay, rate, gate = split(self._inputs(x), [3 * spec.width, dim, heads, dim], 1)
        qkv = F.silu(self._convolution(qkv, rows, tails)).float()
        query, key, value = qkv.view(len(x), 3, heads, dim).unbind(1)
        decay = F.softplus(self._decay(decay).float() + self._bias)
        inputs = Recurrence(
            query=unit(query).mul_(dim**-0.5),
            key=unit(key),
            value=value,
            decay=decay.view(len(x), heads, dim).mul_(self._speed),
            rate=rate.float().sigmoid_().unsqueeze(-1),
        )
        seen = self._norm(advance(rows, states, inputs).to(x.dtype))
        return seen.flatten(1).mul_(self._gate(gate).sigmoid_())

    def add_to(self, hidden: Tensor, mixed: Tensor) -> None:
        self._output.add_to(hidden, mixed)
