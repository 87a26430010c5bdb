"""Vision towers: from the pixels of images to embeddings of the decoder."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.core import plugins
from paceline.runner.layers.factory import LayerFactory
from paceline.runner.layers.linear import Linear
from paceline.runner.layers.norm import Rotation
from paceline.runner.vision.blocks import (
    Groups,
    ScaledPixels,
    TowerLinear,
    VisionBlock,
    norm_of,
)
from paceline.runner.vision.spec import (
    MeanSpec,
    PatchSpec,
    PositionSpec,
    ProjectorSpec,
    TowerSpec,
    VisionSpec,
)

CONVOLUTION = 4  # dimensions of the weights of a convolution of one frame


class SquareMean:
    """The mean of the patches of a square, in float32."""

    def __init__(self, factory: LayerFactory[Linear], spec: MeanSpec) -> None:
        self._factor = spec.factor
        self._offset, self._scale = (
            None if one is None else factory.read(one) for one in (spec.offset, spec.scale)
        )

    def __call__(self, x: Tensor) -> Tensor:
        """[…, patches of a square, width] to […, width]."""
        found = x.float().mean(-2) * self._factor
        if self._offset is not None and self._scale is not None:
            found = (found - self._offset) * self._scale
        return found.to(x.dtype)


class Projector:
    """Turns squares of patches into embeddings."""

    def __init__(self, factory: LayerFactory[Linear], spec: ProjectorSpec) -> None:
        self._mean = None if spec.mean is None else SquareMean(factory, spec.mean)
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
            x = x.flatten(-2) if self._mean is None else self._mean(x)
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
        count = len(table) - int(has_class)  # of patches
        first = 0 if spec.class_last else int(has_class)
        self.of_class = None  # [1, width]
        if has_class:
            self.of_class = table[count:] if spec.class_last else table[:1]
        self._table, self._spec = table[first : first + count], spec  # [side * side, width]

    def __call__(self, position: Tensor, size: Tensor) -> Tensor:
        """Those of patches with these rows and columns [patches, 2], in an image of `size` [2] rows
        and columns of patches: [patches, width]."""
        side, place = self._spec.side, self._spec.place
        if place == "fraction":
            position = fractions(side).to(position.device)[position]
        if place == "sum":
            return self._table[position[:, 1]] + self._table[side + position[:, 0]]
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
        rotation = None if spec.rope is None else self._rotation(position, count)
        deep: list[Tensor] = []
        for index, (block, one) in enumerate(zip(self._blocks, spec.blocks, strict=True)):
            x = block(x, apart if one.windowed else whole, rotation)
            if (projector := self._deep.get(index)) is not None:
                deep.append(projector(self._squares(x, count)))
        found = torch.cat((self._projector(self._squares(x, count)), *deep), dim=-1)
        return torch.empty_like(found).index_copy_(1, order, found)

    def _rotation(self, position: Tensor, count: int) -> Rotation:
        """Of the patches of all images, whose rows and columns [patches, 2] are the same. The class
        token is not rotated, so patches count from 1."""
        if self._class is not None:
            position = F.pad(position + 1, (0, 0, 1, 0))
        return Rotation.of(position.repeat(count, 1)[:, self._axes], self._rope, self._dtype)

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


def patch_linear(factory: LayerFactory[Linear], spec: PatchSpec) -> TowerLinear:
    """A linear of the pixels of a patch, [width, channels * size * size]. If a convolution covers
    several frames, they are equal, so that their weights add up."""
    found = TowerLinear(factory, spec.linear)
    weight, size = found.weight, spec.size
    if spec.channels_last:
        weight = weight.view(len(weight), size, size, -1).permute(0, 3, 1, 2)
    elif weight.dim() > CONVOLUTION:
        weight = weight.sum(2)
    found.weight = weight.flatten(1)
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
