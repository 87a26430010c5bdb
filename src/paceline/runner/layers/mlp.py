"""The gated MLP: down(act(gate(x)) * up(x))."""

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor

from paceline.runner.layers.factory import LayerFactory
from paceline.runner.layers.linear import Linear
from paceline.runner.layers.norm import add_product
from paceline.runner.models.architecture import (
    Activation,
    ClampedGate,
    MLPSpec,
    NormSpec,
    ProductSpec,
)

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


class GatedProducts:
    """The two products of an MLP or of an expert, and what is between them."""

    def __init__(
        self,
        factory: LayerFactory,
        gate_up: ProductSpec,
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
    def __init__(self, factory: LayerFactory, spec: MLPSpec) -> None:
        self._input_norm = factory.unscaled_norm(spec.norm.floor)
        gate, down = plain_gate(spec.activation), factory.summed(spec.down)
        self.products = GatedProducts(factory, spec.gate_up, spec.norm, gate, down)
        self.output_norm = factory.optional_norm(spec.output_norm)

    def add_to(self, hidden: Tensor) -> None:
        """Add the MLP of the residual stream to it."""
        x = self.products.gated(self._input_norm(hidden))
        add_product(hidden, x, self.products.down, self.output_norm)
