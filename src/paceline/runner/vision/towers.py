"""Vision towers: from the pixels of images to embeddings of the decoder."""

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
from paceline.runner.vision.spec import (
    PixelScale,
    PositionSpec,
    ProjectorSpec,
    TowerSpec,
    VisionActivation,
    VisionBlockSpec,
    VisionLinear,
    VisionNorm,
    VisionSpec,
)


def quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: dict[VisionActivation, Callable[[Tensor], Tensor]] = {
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
    """A linear with weights of a tower."""

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

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class WholeNorm:
    """A layer norm, or a root-mean-square norm."""

    def __init__(self, factory: LayerFactory[Linear], spec: VisionNorm) -> None:
        self._weight = (factory.read(spec.weight) + spec.offset).to(factory.dtype)
        self._bias = None if spec.bias is None else factory.read(spec.bias).to(factory.dtype)
        self._eps = spec.eps

    def __call__(self, x: Tensor) -> Tensor:
        if self._bias is None:
            return F.rms_norm(x, x.shape[-1:], self._weight, self._eps)
        return F.layer_norm(x, x.shape[-1:], self._weight, self._bias, self._eps)


def norm_of(factory: LayerFactory[Linear], spec: VisionNorm | None) -> WholeNorm | None:
    return None if spec is None else WholeNorm(factory, spec)


class VisionBlock:
    """Attention among patches, then an MLP for each of them."""

    def __init__(self, factory: LayerFactory[Linear], spec: VisionBlockSpec) -> None:
        self._spec, self._activation = spec, ACTIVATIONS[spec.activation]
        self._norm, self._mlp_norm = (
            WholeNorm(factory, norm) for norm in (spec.norm, spec.mlp_norm)
        )
        self._head_norms = [norm_of(factory, one) for one in (spec.query_norm, spec.key_norm)]
        self._qkv, self._output, self._up, self._down = (
            TowerLinear(factory, linear) for linear in (spec.qkv, spec.output, spec.up, spec.down)
        )

    def __call__(self, x: Tensor, groups: Groups, rotation: Rotation | None = None) -> Tensor:
        """[patches, width] to the same."""
        x = x + self._output(self._attend(self._norm(x), groups, rotation))
        return x + self._mlp(self._mlp_norm(x))

    def _attend(self, x: Tensor, groups: Groups, rotation: Rotation | None) -> Tensor:
        heads = self._spec.heads
        qkv = self._qkv(x).view(len(x), 3, -1)
        for index, norm in enumerate(self._head_norms):
            if norm is not None:
                qkv[:, index] = norm(qkv[:, index])
        qkv = qkv.view(len(x), 3, heads, -1)
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


class Projector:
    """Turns squares of patches into embeddings."""

    def __init__(self, factory: LayerFactory[Linear], spec: ProjectorSpec) -> None:
        self._is_mean = spec.is_mean
        self._norm, self._merged_norm = (
            norm_of(factory, norm) for norm in (spec.norm, spec.merged_norm)
        )
        self._merger = None if spec.merger is None else TowerLinear(factory, spec.merger)
        self._first, *self._rest = (TowerLinear(factory, linear) for linear in spec.linears)

    def __call__(self, x: Tensor) -> Tensor:
        """[…, squares, patches of a square, width] to [..., squares, width of the decoder]."""
        if self._norm is not None:
            x = self._norm(x)
        if self._merger is not None:
            x = self._merger(x.transpose(-1, -2).flatten(-2))
        else:
            x = x.mean(-2) if self._is_mean else x.flatten(-2)
        if self._merged_norm is not None:
            x = self._merged_norm(x)
        x = self._first(x)
        for linear in self._rest:
            x = linear(F.gelu(x))
        return x


class LearnedPositions:
    """The learned positions of patches, and that of the class token."""

    def __init__(self, factory: LayerFactory[Linear], spec: PositionSpec, has_class: bool) -> None:
        table = factory.read(spec.table).to(factory.dtype)
        table = table.view(-1, table.shape[-1])
        self.of_class = table[:1] if has_class else None  # [1, width]
        self._table, self._spec = table[int(has_class) :], spec  # [side * side, width]

    def __call__(self, position: Tensor, size: Tensor) -> Tensor:
        """Those of patches with these rows and columns [patches, 2], in an image of `size` [2] rows
        and columns of patches: [patches, width]."""
        side, place = self._spec.side, self._spec.place
        if place == "fraction":
            position = fractions(side).to(position.device)[position]
        if place != "interpolated":
            return self._table[position[:, 0] * side + position[:, 1]]
        at = position * (side - 1) / (size - 1).clamp(min=1)
        low = at.floor()
        share = at - low  # of the further row, and of the further column
        low = low.long()
        high = (low + 1).clamp(max=side - 1)
        found = torch.zeros((), device=position.device)
        for row, of_row in ((low[:, 0], 1 - share[:, 0]), (high[:, 0], share[:, 0])):
            for column, of_column in ((low[:, 1], 1 - share[:, 1]), (high[:, 1], share[:, 1])):
                found = found + (of_row * of_column)[:, None] * self._table[row * side + column]
        return found.to(self._table.dtype)


def fractions(side: int) -> Tensor:
    """The row, or column, whose learned position a patch in each row has, [side].

    A patch has the position of the point at which it begins, as a fraction of the side. The
    fractions are rounded as in training, so that some patches have the position of a neighbour.
    """
    ends = torch.arange(1 / side, 1.0, 1 / side)
    begin = (torch.arange(side, dtype=torch.float32) * (1.0 / torch.tensor(side))).clamp(
        max=1.0 - 1e-6
    )
    return torch.bucketize(begin, ends, right=True)


class VisionTower(ABC):
    """Encodes images. It is built from a factory of layers and from its description."""

    @abstractmethod
    def __init__(self, factory: LayerFactory[Linear], spec: Any) -> None: ...

    @abstractmethod
    def __call__(self, images: Sequence[Tensor]) -> list[Tensor]:
        """Images [height, width, channels] in bytes to embeddings [n, levels * width] each."""


class PatchTower(VisionTower):
    """Images of one size, many at a time, or of any size that its squares of patches fill, one at a
    time.

    Patches are ordered by square, and squares by window, so that what is merged is adjacent and so
    is what attends to each other.
    """

    def __init__(self, factory: LayerFactory[Linear], spec: TowerSpec) -> None:
        self._spec, self._dtype = spec, factory.dtype
        self._pixels = ScaledPixels(factory, spec.pixels)
        self._patch = patch_linear(factory, spec.patch)
        self._class = None  # [1, width]
        if spec.class_token is not None:
            self._class = factory.read(spec.class_token).to(factory.dtype).view(1, -1)
        self._positions = None
        if spec.positions is not None:
            has_class = self._class is not None
            self._positions = LearnedPositions(factory, spec.positions, has_class)
        self._first_norm = norm_of(factory, spec.first_norm)
        self._blocks = [VisionBlock(factory, block) for block in spec.blocks]
        self._projector = Projector(factory, spec.projector)
        self._deep = {one.block: Projector(factory, one.projector) for one in spec.deep}
        if (rope := spec.rope) is not None:
            device = factory.device
            self._rope = torch.tensor((rope.frequencies, rope.amplitudes), device=device)
            self._axes = torch.tensor(rope.axes, device=device)

    @torch.inference_mode()
    def __call__(self, images: Sequence[Tensor]) -> list[Tensor]:
        if (tile := self._spec.tile) is None:
            return [self._encode(image[None])[0] for image in images]
        # Pixels behind the last whole patch are not read.
        cut = [image[: tile.side, : tile.side] for image in images]
        return list(self._encode(torch.stack(cut)))

    def _encode(self, images: Tensor) -> Tensor:
        """Images [count, height, width, channels] of one size to [count, n, levels * width]."""
        spec, count = self._spec, len(images)
        height, width = images.shape[1:3]
        grid = ImageSquares(height // spec.square, width // spec.square, spec.merge)
        windows = Windows.of(grid.rows, grid.columns, spec.window or max(grid.rows, grid.columns))
        pixels = self._pixels(images)
        order = windows.order.to(pixels.device)
        position = grid.positions()[windows.order].flatten(0, 1).to(pixels.device)
        patches = grid.cut(pixels, spec.patch_size)[:, order].flatten(1, 2)
        x = self._embedded(patches.to(self._dtype), position, grid)  # [images * patches, width]
        whole = [(count, len(x) // count)]
        each = spec.merge**2
        apart = [(number, length * each) for number, length in windows.groups]
        rotation = None
        if spec.rope is not None:
            rotation = Rotation.of(position[:, self._axes], self._rope, self._dtype)
        deep: list[Tensor] = []
        for index, (block, one) in enumerate(zip(self._blocks, spec.blocks, strict=True)):
            x = block(x, apart if one.windowed else whole, rotation)
            if (projector := self._deep.get(index)) is not None:
                deep.append(projector(self._squares(x, count)))
        found = torch.cat((self._projector(self._squares(x, count)), *deep), dim=-1)
        return torch.empty_like(found).index_copy_(1, order, found)

    def _embedded(self, patches: Tensor, position: Tensor, grid: "ImageSquares") -> Tensor:
        """The input of the blocks."""
        x, first = self._patch(patches), self._class
        if self._positions is not None:
            size = torch.tensor((grid.rows, grid.columns), device=x.device) * grid.merge
            x = x + self._positions(position, size)
            if first is not None and self._positions.of_class is not None:
                first = first + self._positions.of_class
        if first is not None:
            x = torch.cat((first.expand(len(x), 1, -1), x), dim=1)
        x = x.flatten(0, 1)
        return x if self._first_norm is None else self._first_norm(x)

    def _squares(self, x: Tensor, count: int) -> Tensor:
        """Patches without the class token, [count, squares, patches of a square, width]."""
        x = x.view(count, -1, x.shape[-1])
        if self._class is not None:
            x = x[:, 1:]
        return x.reshape(count, -1, self._spec.merge**2, x.shape[-1])


def patch_linear(factory: LayerFactory[Linear], spec: VisionLinear) -> TowerLinear:
    """The convolution of patches as a linear, [width, channels * patch * patch]. If it covers
    several frames, they are equal, so that their weights add up."""
    found = TowerLinear(factory, spec)
    frames = found.weight.dim() - 4
    found.weight = (found.weight.sum(2) if frames else found.weight).flatten(1)
    return found


@dataclass(frozen=True, slots=True)
class ImageSquares:
    """An image of `rows` by `columns` squares, each of `merge` by `merge` patches."""

    rows: int
    columns: int
    merge: int

    def cut(self, pixels: Tensor, size: int) -> Tensor:
        """Images [count, height, width, channels], cut into patches of `size` by `size` pixels:
        [count, squares, patches of a square, channels * size * size]."""
        rows, columns, merge = self.rows, self.columns, self.merge
        pixels = pixels[:, : rows * merge * size, : columns * merge * size]
        each = pixels.reshape(len(pixels), rows, merge, size, columns, merge, size, -1)
        squares = each.permute(0, 1, 4, 2, 5, 7, 3, 6)
        return squares.reshape(len(pixels), rows * columns, merge * merge, -1)

    def positions(self) -> Tensor:
        """The row and the column of each patch, [squares, patches of a square, 2]."""
        rows, columns, merge = self.rows, self.columns, self.merge
        row, column = torch.meshgrid(
            torch.arange(rows * merge), torch.arange(columns * merge), indexing="ij"
        )
        position = torch.stack((row, column), -1).view(rows, merge, columns, merge, 2)
        return position.transpose(1, 2).reshape(rows * columns, merge * merge, 2)


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


TOWERS: Mapping[str, type[VisionTower]] = {TowerSpec.FEATURE: PatchTower}


def load(factory: LayerFactory[Linear], spec: VisionSpec) -> VisionTower:
    """Load a tower by the name in its description, or by the dotted path of its class."""
    return plugins.load("vision tower", spec.FEATURE, TOWERS, VisionTower)(factory, spec)
