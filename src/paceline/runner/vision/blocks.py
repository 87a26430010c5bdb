"""Parts of vision towers: linears, norms, and blocks of attention and MLP."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.runner.layers.factory import LayerFactory
from paceline.runner.layers.linear import Linear
from paceline.runner.layers.norm import Rotation
from paceline.runner.vision.spec import (
    Pairs,
    PixelScale,
    VisionActivation,
    VisionBlockSpec,
    VisionHeadNorms,
    VisionLinear,
    VisionNorm,
)


def quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: Mapping[VisionActivation, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "quick_gelu": quick_gelu,
}
# Patches that attend to each other: so many groups of so many patches each, one after the other.
Groups = Sequence[tuple[int, int]]


class ScaledPixels:
    """Turns pixels of 0 to 255 into the numbers that a tower reads."""

    def __init__(self, factory: LayerFactory[Linear], scale: PixelScale) -> None:
        std = torch.tensor(scale.std, device=factory.device)
        self._factor = scale.factor / std  # [channels]
        self._offset = torch.tensor(scale.mean, device=factory.device) / std  # [channels]

    def __call__(self, pixels: Tensor) -> Tensor:
        """[…, channels] in bytes to the same in float32."""
        return pixels.to(self._factor.device, torch.float32) * self._factor - self._offset


class TowerLinear:
    """A linear with weights of a tower. With limits, its tensors are computed one by one."""

    def __init__(self, factory: LayerFactory[Linear], spec: VisionLinear) -> None:
        weight = factory.joined(spec.weights)
        bias = factory.joined(spec.biases) if spec.biases else None
        if spec.is_transposed:
            weight = weight.t()
        if spec.factor is not None:
            factor = factory.read(spec.factor)
            weight, bias = weight * factor[:, None], None if bias is None else bias * factor
        self.weight = weight.to(factory.dtype)  # [outputs, inputs]
        self.bias = None if bias is None else bias.to(factory.dtype)
        self._limits = [
            [float(factory.read(one)) for one in limits] for limits in spec.limits
        ]  # of each tensor

    def __call__(self, x: Tensor) -> Tensor:
        if not self._limits:
            return F.linear(x, self.weight, self.bias)
        found: list[Tensor] = []
        for weight, limits in zip(self.weight.chunk(len(self._limits)), self._limits, strict=True):
            least, most, lowest, highest = limits
            found.append(F.linear(x.clamp(least, most), weight).clamp_(lowest, highest))
        return torch.cat(found, -1)

    def reorder(self, order: Tensor) -> None:
        """Let the first outputs be in another order."""
        order = order.to(self.weight.device)
        self.weight[: len(order)] = self.weight[order]
        if self.bias is not None:
            self.bias[: len(order)] = self.bias[order]


class WholeNorm:
    """A layer norm, or a root-mean-square norm."""

    def __init__(
        self, factory: LayerFactory[Linear], spec: VisionNorm, order: Tensor | None = None
    ) -> None:
        """With `order`, inputs are in another order than in the checkpoint."""
        self._weight = None
        if spec.weight is not None:
            weight = (factory.read(spec.weight) + spec.offset).to(factory.dtype)
            self._weight = weight if order is None else weight[order.to(weight.device)]
        self._bias = None if spec.bias is None else factory.read(spec.bias).to(factory.dtype)
        self._eps = spec.eps

    def __call__(self, x: Tensor) -> Tensor:
        if self._bias is None:
            return F.rms_norm(x, x.shape[-1:], self._weight, self._eps)
        return F.layer_norm(x, x.shape[-1:], self._weight, self._bias, self._eps)


def norm_of(factory: LayerFactory[Linear], spec: VisionNorm | None) -> WholeNorm | None:
    return None if spec is None else WholeNorm(factory, spec)


def order_of(pairs: Pairs, dim: int) -> Tensor:
    """The order of the dimensions of a head in which dimensions i and i + half rotate together."""
    each = torch.arange(dim)
    if pairs == "adjacent":
        return each.view(-1, 2).T.flatten()
    return each.view(2, 2, -1).transpose(0, 1).flatten() if pairs == "quarters" else each


class PatchHeadNorms:
    """Norms of queries, keys and values."""

    def __init__(self, factory: LayerFactory[Linear], spec: VisionHeadNorms, order: Tensor) -> None:
        """`order` of the dimensions of a head."""
        self._is_whole, own = spec.whole, None if spec.whole else order
        self._query, self._key = (WholeNorm(factory, norm, own) for norm in (spec.query, spec.key))
        self._value = norm_of(factory, spec.value)

    def apply_to(self, qkv: Tensor) -> None:
        """[patches, 3, heads, dims of a head]"""
        for index, norm in enumerate((self._query, self._key, self._value)):
            if norm is not None:
                part = qkv[:, index]
                found = norm(part.flatten(1) if self._is_whole else part)
                qkv[:, index] = found.view_as(part)


class VisionBlock:
    """Attention among patches, then an MLP for each of them."""

    def __init__(self, factory: LayerFactory[Linear], spec: VisionBlockSpec) -> None:
        self._spec, self._activation = spec, ACTIVATIONS[spec.activation]
        self._norm, self._mlp_norm = (
            WholeNorm(factory, norm) for norm in (spec.norm, spec.mlp_norm)
        )
        self._output_norm, self._mlp_output_norm = (
            norm_of(factory, norm) for norm in (spec.output_norm, spec.mlp_output_norm)
        )
        self._qkv, self._output, self._up, self._down = (
            TowerLinear(factory, linear) for linear in (spec.qkv, spec.output, spec.up, spec.down)
        )
        dim = len(self._qkv.weight) // (3 * spec.heads)
        order = order_of(spec.pairs, dim)
        if spec.pairs != "halves":
            heads = torch.arange(2 * spec.heads).unsqueeze(1) * dim  # of queries and keys
            self._qkv.reorder((heads + order).flatten())
        self._head_norms = None
        if spec.head_norms is not None:
            self._head_norms = PatchHeadNorms(factory, spec.head_norms, order)

    def __call__(self, x: Tensor, groups: Groups, rotation: Rotation | None = None) -> Tensor:
        """[patches, width] to the same."""
        found = self._output(self._attend(self._norm(x), groups, rotation))
        x = x + (found if self._output_norm is None else self._output_norm(found))
        found = self._mlp(self._mlp_norm(x))
        return x + (found if self._mlp_output_norm is None else self._mlp_output_norm(found))

    def _attend(self, x: Tensor, groups: Groups, rotation: Rotation | None) -> Tensor:
        heads, scale = self._spec.heads, self._spec.scale
        qkv = self._qkv(x).view(len(x), 3, heads, -1)
        if self._head_norms is not None:
            self._head_norms.apply_to(qkv)
        if rotation is not None:
            rotation.rotate(qkv[:, :2].flatten(1, 2))
        parts: list[Tensor] = []
        for part, (count, length) in zip(
            torch.split(qkv, [count * length for count, length in groups]), groups, strict=True
        ):
            each = part.view(count, length, 3, heads, -1).permute(2, 0, 3, 1, 4)
            query, key, value = each.unbind()  # [count, heads, length, dims]
            seen = F.scaled_dot_product_attention(query, key, value, scale=scale)
            parts.append(seen.transpose(1, 2).reshape(count * length, -1))
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def _mlp(self, x: Tensor) -> Tensor:
        if not self._spec.gated:
            return self._down(self._activation(self._up(x)))
        gate, up = self._up(x).chunk(2, dim=-1)
        return self._down(self._activation(gate) * up)
