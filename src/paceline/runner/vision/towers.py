"""The vision tower of Qwen2.5-VL."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.core import plugins
from paceline.runner.layers.factory import LayerFactory
from paceline.runner.layers.linear import Linear
from paceline.runner.layers.norm import Rotation
from paceline.runner.models.rope import frequencies
from paceline.runner.models.tensor_spec import (
    PixelScale,
    QwenVisionSpec,
    SigLIPSpec,
    VisionActivation,
    VisionBlockSpec,
    VisionLinear,
    VisionNorm,
    VisionSpec,
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

    def __init__(self, factory: LayerFactory[Linear], scale: PixelScale) -> None:
        std = torch.tensor(scale.std, device=factory.device)
        self._factor = scale.factor / std  # [channels]
        self._offset = torch.tensor(scale.mean, device=factory.device) / std  # [channels]

    def __call__(self, pixels: Tensor) -> Tensor:
        """[…, channels] in bytes to the same in float32."""
        return pixels.to(self._factor.device, torch.float32) * self._factor - self._offset


class TowerLinear:
    """A linear with weights of a tower."""

    def __init__(self, factory: LayerFactory[Linear], spec: VisionLinear) -> None:
        self.weight = factory.joined(spec.weights).to(factory.dtype)  # [outputs, inputs]
        self.bias = factory.joined(spec.biases).to(factory.dtype) if spec.biases else None

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class WholeNorm:
    """A layer norm, or a root-mean-square norm."""

    def __init__(self, factory: LayerFactory[Linear], spec: VisionNorm) -> None:
        self._weight = factory.read(spec.weight).to(factory.dtype)
        self._bias = None if spec.bias is None else factory.read(spec.bias).to(factory.dtype)
        self._eps = spec.eps

    def __call__(self, x: Tensor) -> Tensor:
        if self._bias is None:
            return F.rms_norm(x, x.shape[-1:], self._weight, self._eps)
        return F.layer_norm(x, x.shape[-1:], self._weight, self._bias, self._eps)


class VisionBlock:
    """Attention among patches, then an MLP for each of them."""

    def __init__(self, factory: LayerFactory[Linear], spec: VisionBlockSpec) -> None:
        self._spec, self._activation = spec, ACTIVATIONS[spec.activation]
        self._norm, self._mlp_norm = (
            WholeNorm(factory, norm) for norm in (spec.norm, spec.mlp_norm)
        )
        self._qkv, self._output, self._up, self._down = (
            TowerLinear(factory, linear) for linear in (spec.qkv, spec.output, spec.up, spec.down)
        )

    def __call__(self, x: Tensor, groups: Groups, rotation: Rotation | None = None) -> Tensor:
        """[patches, width] to the same."""
        x = x + self._output(self._attend(self._norm(x), groups, rotation))
        return x + self._mlp(self._mlp_norm(x))

    def _attend(self, x: Tensor, groups: Groups, rotation: Rotation | None) -> Tensor:
        heads = self._spec.heads
        qkv = self._qkv(x).view(len(x), 3, heads, -1)
        if rotation is not None:
            rotation.rotate(qkv[:, :2].flatten(1, 2))
        parts: list[Tensor] = []
        for part, (count, length) in zip(
            torch.split(qkv, [count * length for count, length in groups]), groups, strict=True
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


class VisionTower(ABC):
    """Encodes images. It is built from a factory of layers and from its description."""

    @abstractmethod
    def __init__(self, factory: LayerFactory[Linear], spec: Any) -> None: ...

    @abstractmethod
    def __call__(self, images: Sequence[Tensor]) -> list[Tensor]:
        """Images [height, width, channels] in bytes to embeddings [n, width] each."""


class SigLIPTower(VisionTower):
    """Square images of one size, many at a time."""

    def __init__(self, factory: LayerFactory[Linear], spec: SigLIPSpec) -> None:
        self._side, self._merge, self._dtype = spec.side, spec.merge, factory.dtype
        self._pixels = ScaledPixels(factory, spec.pixels)
        self._patch = TowerLinear(factory, spec.patch)
        self._read = spec.side * self._patch.weight.shape[-1]  # pixels along each side
        self._patch.weight = self._patch.weight.flatten(1)  # [width, channels * patch * patch]
        learned = factory.read(spec.positions).to(factory.dtype)
        self._positions = learned[position_ids(spec.side).to(learned.device)]  # [patches, width]
        self._blocks = [VisionBlock(factory, block) for block in spec.blocks]
        self._norm = WholeNorm(factory, spec.norm)
        self._projection = TowerLinear(factory, spec.projection)

    @torch.inference_mode()
    def __call__(self, images: Sequence[Tensor]) -> list[Tensor]:
        read, side, merge = self._read, self._side, self._merge
        pixels = self._pixels(torch.stack([image[:read, :read] for image in images]))
        count, size = len(pixels), read // side
        cut = pixels.view(count, side, size, side, size, -1).permute(0, 1, 3, 5, 2, 4)
        patches = self._patch(cut.reshape(count, side * side, -1).to(self._dtype))
        x = (patches + self._positions).flatten(0, 1)  # [images * patches, width]
        for block in self._blocks:
            x = block(x, [(count, side * side)])
        few = side // merge
        square = self._norm(x).view(count, few, merge, few, merge, -1).transpose(2, 3)
        return list(self._projection(square.reshape(count, few * few, -1)))


def position_ids(side: int) -> Tensor:
    """Index of the learned position of each patch of an image, [side * side].

    A patch has the position of the point at which it begins, as a fraction of the side. The
    fractions are rounded as in training, so that some patches have the position of a neighbour.
    """
    ends = torch.arange(1 / side, 1.0, 1 / side)
    begin = (torch.arange(side, dtype=torch.float32) * (1.0 / torch.tensor(side))).clamp(
        max=1.0 - 1e-6
    )
    index = torch.bucketize(begin, ends, right=True)
    return (index[:, None] * side + index[None, :]).flatten()


class QwenTower(VisionTower):
    """Images of any size that its squares of patches fill, one at a time.

    Patches are ordered by square, and squares by window, so that what is merged is adjacent and so
    is what attends to each other.
    """

    def __init__(self, factory: LayerFactory[Linear], spec: QwenVisionSpec) -> None:
        self._spec, self._dtype = spec, factory.dtype
        self._pixels = ScaledPixels(factory, spec.pixels)
        self._patch = TowerLinear(factory, spec.patch)
        self._size = self._patch.weight.shape[-1]
        # Its frames are equal, so that their weights add up: [width, channels * patch * patch].
        self._patch.weight = self._patch.weight.sum(2).flatten(1)
        self._blocks = [VisionBlock(factory, block) for block in spec.blocks]
        self._norm = WholeNorm(factory, spec.norm)
        self._merger = [TowerLinear(factory, linear) for linear in spec.merger]
        dims = len(self._patch.weight) // spec.blocks[0].heads
        each = frequencies(spec.theta, dims // 2)  # of rows, and then of columns
        self._rope = torch.tensor((each * 2, (1.0,) * len(each) * 2), device=factory.device)

    def __call__(self, images: Sequence[Tensor]) -> list[Tensor]:
        return [self._encode(image) for image in images]

    @torch.inference_mode()
    def _encode(self, image: Tensor) -> Tensor:
        merge, size = self._spec.merge, self._size
        rows, columns = (length // (size * merge) for length in image.shape[:2])
        squares = rows * columns
        pixels = self._pixels(image).view(rows, merge, size, columns, merge, size, -1)
        cut = pixels.permute(0, 3, 1, 4, 6, 2, 5).reshape(squares, merge * merge, -1)
        windows = Windows.of(rows, columns, self._spec.window)
        order = windows.order.to(cut.device)
        x = self._patch(cut[order].flatten(0, 1).to(self._dtype))  # [patches, width]
        position = patch_positions(rows, columns, merge)[windows.order].flatten(0, 1)
        rotation = self._rotation(position.to(x.device))
        apart = [(count, length * merge * merge) for count, length in windows.groups]
        for block, spec in zip(self._blocks, self._spec.blocks, strict=True):
            x = block(x, apart if spec.windowed else [(1, len(x))], rotation)
        first, second = self._merger
        merged = second(F.gelu(first(self._norm(x).view(squares, -1))))
        return torch.empty_like(merged).index_copy_(0, order, merged)

    def _rotation(self, position: Tensor) -> Rotation:
        """Half of the pairs of a head rotate by row, the others by column, [patches, 2]."""
        by_pair = position.repeat_interleave(self._rope.shape[1] // 2, dim=1)
        return Rotation.of(by_pair, self._rope, self._dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """The windows of an image, those of one size after the other.

    order    which square is where, [squares]
    groups   numbers of windows of a size, and squares of each of them
    """

    order: Tensor
    groups: Groups

    @staticmethod
    def of(rows: int, columns: int, side: int) -> "Windows":
        """An image of `rows` by `columns` squares, cut into windows of `side` by `side`."""
        index = torch.arange(rows * columns).view(rows, columns)
        by_length: dict[int, list[Tensor]] = {}
        for top in range(0, rows, side):
            for left in range(0, columns, side):
                window = index[top : top + side, left : left + side].flatten()
                by_length.setdefault(len(window), []).append(window)
        order = torch.cat([window for same in by_length.values() for window in same])
        return Windows(order, [(len(same), length) for length, same in by_length.items()])


def patch_positions(rows: int, columns: int, merge: int) -> Tensor:
    """The row and the column of each patch, [squares, merge * merge, 2]."""
    row, column = torch.meshgrid(
        torch.arange(rows * merge), torch.arange(columns * merge), indexing="ij"
    )
    position = torch.stack((row, column), -1).view(rows, merge, columns, merge, 2)
    return position.transpose(1, 2).reshape(rows * columns, merge * merge, 2)


TOWERS: Mapping[str, type[VisionTower]] = {"siglip": SigLIPTower, "qwen": QwenTower}


def load(factory: LayerFactory[Linear], spec: VisionSpec) -> VisionTower:
    """Load a tower by the name in its description, or by the dotted path of its class."""
    return plugins.load("vision tower", spec.FEATURE, TOWERS, VisionTower)(factory, spec)
