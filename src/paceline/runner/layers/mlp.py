"""The gated MLP: down(act(gate(x)) * up(x))."""

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor

from paceline.runner.layers.factory import Parts
from paceline.runner.models.traits import Activation

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
}


class MLP:
    def __init__(self, parts: Parts, name: str, before: Tensor) -> None:
        self.gate_up = parts.linear([f"{name}.gate_proj", f"{name}.up_proj"], before)
        self._activation = ACTIVATIONS[parts.config.traits.activation]
        self.down = parts.linear([f"{name}.down_proj"])

    def __call__(self, x: Tensor) -> Tensor:
        """All but the product with `down`, which the block joins to its addition."""
        gate, up = self.gate_up(x).chunk(2, dim=-1)  # [positions, mlp_width] each
        return self._activation(gate).mul_(up)
