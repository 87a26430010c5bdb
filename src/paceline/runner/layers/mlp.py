"""MLPs, with and without a gate, and mixture of experts (MoE)."""

from collections.abc import Callable
from functools import partial
from math import exp, log1p

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.runner.layers.factory import LayerFactory
from paceline.runner.layers.linear import Linear
from paceline.runner.layers.norm import add_linear
from paceline.runner.models.architecture import (
    XIELU,
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
    "relu2": lambda x: F.relu(x).square_(),
}


# From what `gate_up` computes, [positions, 2 * width] or [positions, width], to what `down` reads.
Inner = Callable[[Tensor], Tensor]


def plain_gate(activation: Activation) -> Inner:
    """activation(gate) * up"""

    def apply(gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return ACTIVATIONS[activation](gate).mul_(up)

    return apply


def clamped_gate(clamp: ClampedGate) -> Inner:
    def apply(gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        gate, up = gate.clamp(max=clamp.limit), up.clamp(-clamp.limit, clamp.limit)
        return (gate * clamp.alpha).sigmoid_().mul_(gate).mul_(up.add_(1.0))

    return apply


def xielu(factory: LayerFactory[Linear], spec: XIELU) -> Inner:
    """Quadratic above zero and exponential below, plus a linear part."""
    up, down, beta, eps = (
        float(factory.read(one)) for one in (spec.up, spec.down, spec.beta, spec.eps)
    )
    above, below = softplus(up), beta + softplus(down)

    def apply(x: Tensor) -> Tensor:
        negative = x.clamp(max=eps).expm1_().sub_(x).mul_(below)
        return torch.where(x > 0, (x * x).mul_(above), negative).add_(x, alpha=beta)

    return apply


def softplus(x: float) -> float:
    return log1p(exp(x))


def inner_of(factory: LayerFactory[Linear], spec: MLPSpec) -> Inner:
    if spec.xielu is not None:
        return xielu(factory, spec.xielu)
    return plain_gate(spec.activation) if spec.gated else ACTIVATIONS[spec.activation]


class GatedLinears:
    """The two linears of an MLP or an expert, and the gate or activation between them."""

    def __init__(
        self,
        factory: LayerFactory[Linear],
        gate_up: LinearSpec,
        norm: NormSpec | None,
        inner: Inner,
        down: Linear,
    ) -> None:
        self.gate_up = factory.linear(gate_up, norm)
        self._inner = inner
        self.down = down

    def gated(self, x: Tensor) -> Tensor:
        """The input of `down`."""
        return self._inner(self.gate_up(x))


class MLP:
    def __init__(self, factory: LayerFactory[Linear], spec: MLPSpec) -> None:
        self._input_norm = factory.input_norm(spec.norm)
        inner, down = inner_of(factory, spec), factory.summed(spec.down)
        self.linears = GatedLinears(factory, spec.gate_up, spec.norm, inner, down)
        self.output_norm = factory.optional_norm(spec.output_norm)

    def add_to(self, hidden: Tensor) -> None:
        """Add the MLP's output to the residual stream."""
        x = self.linears.gated(self._input_norm(hidden))
        add_linear(hidden, x, self.linears.down, self.output_norm)


class MoE:
    """An MoE layer. It sorts positions by expert, so that each expert computes all at once."""

    def __init__(self, factory: LayerFactory[Linear], spec: MoESpec) -> None:
        self._spec = spec
        self._input_norm = factory.unscaled_norm(spec.norm)
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
