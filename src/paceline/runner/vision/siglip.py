"""The vision tower of Idefics3 and SmolVLM."""

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.runner.layers.factory import LayerFactory
from paceline.runner.models.tensor_spec import SigLIPSpec
from paceline.runner.vision.block import Product, ScaledPixels, VisionBlock, WholeNorm


class SigLIPTower:
    """Square images of one size, many at a time."""

    def __init__(self, factory: LayerFactory, spec: SigLIPSpec) -> None:
        self._side, self._merge, self._dtype = spec.side, spec.merge, factory.dtype
        self._pixels = ScaledPixels(factory, spec.pixels)
        self._patch = Product(factory, spec.patch)
        self._read = spec.side * self._patch.weight.shape[-1]  # pixels along each side
        self._patch.weight = self._patch.weight.flatten(1)  # [width, channels * patch * patch]
        learned = factory.read(spec.positions).to(factory.dtype)
        self._positions = learned[position_ids(spec.side).to(learned.device)]  # [patches, width]
        self._blocks = [VisionBlock(factory, block) for block in spec.blocks]
        self._norm = WholeNorm(factory, spec.norm)
        self._projection = Product(factory, spec.projection)

    @torch.inference_mode()
    def __call__(self, images: Sequence[Tensor]) -> list[Tensor]:
        """Images [height, width, channels] in bytes to embeddings [n, width] each."""
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
    """Which learned position each patch of an image has, [side * side].

    A patch has the position of the place at which it begins, as a fraction of the side. The
    fractions are rounded as in training, so that some patches have the position of a neighbour.
    """
    ends = torch.arange(1 / side, 1.0, 1 / side)
    begin = (torch.arange(side, dtype=torch.float32) * (1.0 / torch.tensor(side))).clamp(
        max=1.0 - 1e-6
    )
    place = torch.bucketize(begin, ends, right=True)
    return (place[:, None] * side + place[None, :]).flatten()
