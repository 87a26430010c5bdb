"""The parts that vision towers are made of, in torch."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.runner.layers.factory import LayerFactory
from paceline.runner.layers.norm import Rotation
from paceline.runner.models.tensor_spec import (
    PixelScale,
    VisionActivation,
    VisionBlockSpec,
    VisionNorm,
    VisionProduct,
)

ACTIVATIONS: dict[VisionActivation, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
}
# Patches that attend to each other: so many groups of so many patches each, one after the other.
Groups = Sequence[tuple[int, int]]


class ScaledPixels:
    """Turns pixels of 0 to 255 into the numbers that a tower reads."""

    def __init__(self, factory: LayerFactory, scale: PixelScale) -> None:
        std = torch.tensor(scale.std, device=factory.device)
        self._factor = scale.factor / std  # [channels]
        self._offset = torch.tensor(scale.mean, device=factory.device) / std  # [channels]

    def __call__(self, pixels: Tensor) -> Tensor:
        """[…, channels] in bytes to the same in float32."""
        return pixels.to(self._factor.device, torch.float32) * self._factor - self._offset


class Product:
    """A product with weights of a tower."""

    def __init__(self, factory: LayerFactory, spec: VisionProduct) -> None:
        self.weight = factory.joined(spec.weights).to(factory.dtype)  # [outputs, inputs]
        self.bias = factory.joined(spec.biases).to(factory.dtype) if spec.biases else None

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class WholeNorm:
    """A layer norm, or a root-mean-square norm."""

    def __init__(self, factory: LayerFactory, spec: VisionNorm) -> None:
        self._weight = factory.read(spec.weight).to(factory.dtype)
        self._bias = None if spec.bias is None else factory.read(spec.bias).to(factory.dtype)
        self._eps = spec.eps

    def __call__(self, x: Tensor) -> Tensor:
        if self._bias is None:
            return F.rms_norm(x, x.shape[-1:], self._weight, self._eps)
        return F.layer_norm(x, x.shape[-1:], self._weight, self._bias, self._eps)


class VisionBlock:
    """Attention among patches, then an MLP for each of them."""

    def __init__(self, factory: LayerFactory, spec: VisionBlockSpec) -> None:
        self._spec, self._activation = spec, ACTIVATIONS[spec.activation]
        self._norm, self._mlp_norm = (
            WholeNorm(factory, norm) for norm in (spec.norm, spec.mlp_norm)
        )
        self._qkv, self._output, self._up, self._down = (
            Product(factory, product) for product in (spec.qkv, spec.output, spec.up, spec.down)
        )

    def __call__(self, x: Tensor, groups: Groups, rotation: Rotation | None = None) -> Tensor:
        """[patches, width] to the same."""
        x = x + self._output(self._attend(self._norm(x), groups, rotation))
        return x + self._mlp(self._mlp_norm(x))

    def _attend(self, x: Tensor, groups: Groups, rotation: Rotation | None) -> Tensor:
        heads = self._spec.heads
        qkv = self._qkv(x).view(len(x), 3, heads, -1)
        if rotation is not None:
            rotation.turn(qkv[:, :2].flatten(1, 2))
        parts: list[Tensor] = []
        for part, (count, length) in zip(
            qkv.split([count * length for count, length in groups]), groups, strict=True
        ):
            each = part.view(count, length, 3, heads, -1).permute(2, 0, 3, 1, 4)
            query, key, value = each.unbind()  # [count, heads, length, dims]
            seen = F.scaled_dot_product_attention(query, key, value)
            parts.append(seen.transpose(1, 2).reshape(count * length, -1))
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def _mlp(self, x: Tensor) -> Tensor:
        if not self._spec.gated:
            return self._down(self._activation(self._up(x)))
        gate, up = self._up(x).chunk(2, dim=-1)
        return self._down(self._activation(gate) * up)
