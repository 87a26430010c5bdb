"""The gated MLP: down(act(gate(x)) * up(x))."""

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor

from paceline.runner.layers.factory import LayerFactory
from paceline.runner.models.architecture import Activation, MLPSpec

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
}


class MLP:
    def __init__(self, factory: LayerFactory, spec: MLPSpec) -> None:
        self.gate_up = factory.linear(spec.gate_up, spec.norm)
        self._activation = ACTIVATIONS[spec.activation]
        self.down = factory.linear(spec.down)

    def __call__(self, x: Tensor) -> Tensor:
        """Everything but the product with `down`, which the layer adds to the residual stream."""
        gate, up = self.gate_up(x).chunk(2, dim=-1)  # [positions, width] each
        return self._activation(gate).mul_(up)
