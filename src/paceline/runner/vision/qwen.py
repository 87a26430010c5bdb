"""The vision tower of Qwen2.5-VL."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.runner.layers.factory import LayerFactory
from paceline.runner.layers.norm import Rotation
from paceline.runner.models.rope import frequencies
from paceline.runner.models.tensor_spec import QwenVisionSpec
from paceline.runner.vision.block import Groups, Product, ScaledPixels, VisionBlock, WholeNorm


class QwenTower:
    """Images of any size that its squares of patches fill, one at a time.

    Patches are ordered by square, and squares by window, so that what is merged is adjacent and so
    is what attends to each other.
    """

    def __init__(self, factory: LayerFactory, spec: QwenVisionSpec) -> None:
        self._spec, self._dtype = spec, factory.dtype
        self._pixels = ScaledPixels(factory, spec.pixels)
        self._patch = Product(factory, spec.patch)
        self._size = self._patch.weight.shape[-1]
        # Its frames are equal, so that their weights add up: [width, channels * patch * patch].
        self._patch.weight = self._patch.weight.sum(2).flatten(1)
        self._blocks = [VisionBlock(factory, block) for block in spec.blocks]
        self._norm = WholeNorm(factory, spec.norm)
        self._merger = [Product(factory, product) for product in spec.merger]
        dims = len(self._patch.weight) // spec.blocks[0].heads
        each = frequencies(spec.theta, dims // 2)  # of rows, and then of columns
        self._rope = torch.tensor((each * 2, (1.0,) * len(each) * 2), device=factory.device)

    def __call__(self, images: Sequence[Tensor]) -> list[Tensor]:
        """Images [height, width, channels] in bytes to embeddings [n, width] each."""
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
        place = patch_places(rows, columns, merge)[windows.order].flatten(0, 1)
        rotation = self._rotation(place.to(x.device))
        apart = [(count, length * merge * merge) for count, length in windows.groups]
        for block, spec in zip(self._blocks, self._spec.blocks, strict=True):
            x = block(x, apart if spec.windowed else [(1, len(x))], rotation)
        first, second = self._merger
        merged = second(F.gelu(first(self._norm(x).view(squares, -1))))
        return torch.empty_like(merged).index_copy_(0, order, merged)

    def _rotation(self, place: Tensor) -> Rotation:
        """Half of the pairs of a head turn by row, the others by column. `place`: [patches, 2]."""
        by_pair = place.repeat_interleave(self._rope.shape[1] // 2, dim=1)
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


def patch_places(rows: int, columns: int, merge: int) -> Tensor:
    """The row and the column of each patch, [squares, merge * merge, 2]."""
    row, column = torch.meshgrid(
        torch.arange(rows * merge), torch.arange(columns * merge), indexing="ij"
    )
    places = torch.stack((row, column), -1).view(rows, merge, columns, merge, 2)
    return places.transpose(1, 2).reshape(rows * columns, merge * merge, 2)
