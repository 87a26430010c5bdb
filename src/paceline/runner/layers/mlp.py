"""The gated MLP, down(act(gate(x)) * up(x)), and mixture of experts (MoE)."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.runner.layers.factory import LayerFactory
from paceline.runner.layers.linear import Linear
from paceline.runner.layers.norm import add_linear
from paceline.runner.models.architecture import (
    Activation,
    ClampedGate,
    LinearSpec,
    MLPSpec,
    MoESpec,
    NormSpec,
)
from paceline.runner.tensors import split, to_ints

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
}


Gate = Callable[[Tensor, Tensor], Tensor]  # of gate and up, [positions, width] each


def plain_gate(activation: Activation) -> Gate:
    """activation(gate) * up"""
    return lambda gate, up: ACTIVATIONS[activation](gate).mul_(up)


def clamped_gate(clamp: ClampedGate) -> Gate:
    def apply(gate: Tensor, up: Tensor) -> Tensor:
        gate, up = gate.clamp(max=clamp.limit), up.clamp(-clamp.limit, clamp.limit)
        return (gate * clamp.alpha).sigmoid_().mul_(gate).mul_(up.add_(1.0))

    return apply


class GatedLinears:
    """The two linears of an MLP or an expert, and the gate between them."""

    def __init__(
        self,
        factory: LayerFactory[Linear],
        gate_up: LinearSpec,
        norm: NormSpec,
        gate: Gate,
        down: Linear,
    ) -> None:
        self.gate_up = factory.linear(gate_up, norm)
        self._gate = gate
        self.down = down

    def gated(self, x: Tensor) -> Tensor:
        """The input of `down`."""
        gate, up = self.gate_up(x).chunk(2, dim=-1)  # [positions, width] each
        return self._gate(gate, up)


class MLP:
    def __init__(self, factory: LayerFactory[Linear], spec: MLPSpec) -> None:
        self._input_norm = factory.unscaled_norm(spec.norm.floor)
        gate, down = plain_gate(spec.activation), factory.summed(spec.down)
        self.linears = GatedLinears(factory, spec.gate_up, spec.norm, gate, down)
        self.output_norm = factory.optional_norm(spec.output_norm)

    def add_to(self, hidden: Tensor) -> None:
        """Add the MLP's output to the residual stream."""
        x = self.linears.gated(self._input_norm(hidden))
        add_linear(hidden, x, self.linears.down, self.output_norm)


class MoE:
    """An MoE layer. It sorts positions by expert, so that each expert computes all at once."""

    def __init__(self, factory: LayerFactory[Linear], spec: MoESpec) -> None:
        self._spec = spec
        self._input_norm = factory.unscaled_norm(spec.norm.floor)
        self.router = factory.router(spec.router, spec.norm)  # [experts, width]
        biases = spec.router.biases
        self._router_bias = factory.joined(biases) if biases else None  # [experts]
        self.output_norm = None  # no architecture has one
        gate = plain_gate(spec.activation) if spec.clamp is None else clamped_gate(spec.clamp)
        self.experts = [
            GatedLinears(factory, one.gate_up, spec.norm, gate, factory.linear(one.down))
            for one in spec.experts
        ]
        self._summed = factory.sum_over_ranks()

    def add_to(self, hidden: Tensor) -> None:
        """Add the experts' output to the residual stream."""
        x = self._input_norm(hidden)
        chosen, share = self._choose(x)
        total = torch.zeros_like(hidden)
        order = chosen.flatten().argsort(stable=True)  # [positions * chosen]
        counts = to_ints(chosen.flatten().bincount(minlength=len(self.experts)))
        for expert, pairs in zip(self.experts, split(order, counts), strict=True):
            if len(pairs):
                position = pairs // self._spec.chosen
                found = expert.down(expert.gated(x[position]))
                total.index_add_(0, position, found.mul_(share.flatten()[pairs].unsqueeze(1)))
        hidden.add_(self._summed(total))

    def _choose(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Experts of each position and their weights, [positions, chosen] each."""
        scores = F.linear(x.float(), self.router, self._router_bias)  # [positions, experts]
        share, chosen = scores.softmax(dim=-1).topk(self._spec.chosen)
        if self._spec.shares_sum_to_one:
            share = share / share.sum(dim=-1, keepdim=True)
        return chosen, share.to(x.dtype)
