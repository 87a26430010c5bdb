"""The gated MLP: down(act(gate(x)) * up(x))."""

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor

from paceline.runner.layers.factory import LayerFactory
from paceline.runner.layers.norm import add_product
from paceline.runner.models.architecture import Activation, ExpertSpec, MLPSpec, NormSpec

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
}


class GatedProducts:
    """The two products of an MLP or of an expert, and what is between them."""

    def __init__(
        self,
        factory: LayerFactory,
        spec: MLPSpec | ExpertSpec,
        norm: NormSpec,
        activation: Activation,
    ) -> None:
        self.gate_up = factory.linear(spec.gate_up, norm)
        self._activation = ACTIVATIONS[activation]
        self.down = factory.linear(spec.down)

    def gated(self, x: Tensor) -> Tensor:
        """The input of `down`."""
        gate, up = self.gate_up(x).chunk(2, dim=-1)  # [positions, width] each
        return self._activation(gate).mul_(up)


class MLP:
    def __init__(self, factory: LayerFactory, spec: MLPSpec) -> None:
        self._input_norm = factory.unscaled_norm(spec.norm.floor)
        self.products = GatedProducts(factory, spec, spec.norm, spec.activation)
        self.output_norm = factory.optional_norm(spec.output_norm)

    def add_to(self, hidden: Tensor) -> None:
        """Add the MLP of the residual stream to it."""
        x = self.products.gated(self._input_norm(hidden))
        add_product(hidden, x, self.products.down, self.output_norm)
