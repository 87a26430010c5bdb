"""Turns the images of prompts into embeddings."""

from collections.abc import Callable, Sequence
from math import isqrt

import torch
from torch import Tensor

from paceline.core.multimodal import ImageContent
from paceline.runner.layers.factory import LayerFactory
from paceline.runner.layers.linear import Linear
from paceline.runner.models.architecture import DecoderSpec, attentions
from paceline.runner.parallel.group import decides
from paceline.runner.tensors import from_numpy
from paceline.runner.vision import towers
from paceline.runner.vision.spec import Tile

# Images [height, width, channels] in bytes to embeddings [n, width] each.
Tower = Callable[[Sequence[Tensor]], list[Tensor]]

CHANNELS = 3
PIXELS = "pixels"  # the array of an image: [height, width, channels], bytes


class ImageEncoder:
    """A vision tower behind the interface of the encoder store.

    tower    None on ranks other than 0, which encodes for all
    width    of an embedding: that of the decoder, or of several inputs of layers, side by side
    square   pixels along each side of what becomes one embedding, where positions have rows and
             columns; 0: a position is one number
    tile     what an image of a fixed size has; None: images have any size
    """

    def __init__(
        self, tower: Tower | None, width: int, square: int = 0, tile: Tile | None = None
    ) -> None:
        self.width, self.tower, self.square, self.tile = width, tower, square, tile

    @property
    def encodes(self) -> bool:
        return self.tower is not None

    def encode(self, images: Sequence[ImageContent]) -> list[Tensor]:
        """The embeddings of each image, [n, width]."""
        assert self.tower is not None, "rank 0 encodes images"
        return self.tower([from_numpy(image[PIXELS].copy()) for image in images])

    def rehearse(self, embeddings: int) -> None:
        """Encode as many images as have so many embeddings, to see what memory that takes. Where
        images have any size, it is one, since the tower takes one at a time."""
        if self.tower is None:
            return
        if (tile := self.tile) is not None:
            self.tower([blank(tile.side, tile.side)] * max(1, embeddings // tile.embeddings))
        elif self.square:
            rows = max(1, isqrt(embeddings))
            self.tower([blank(rows * self.square, embeddings // rows * self.square)])


def blank(height: int, width: int) -> Tensor:
    return torch.zeros(height, width, CHANNELS, dtype=torch.uint8)


def image_encoder(factory: LayerFactory[Linear], spec: DecoderSpec) -> ImageEncoder | None:
    """The encoder of a model; None if it reads no images."""
    if (vision := spec.vision) is None:
        return None
    has_axes = any(one.rope.axes for one in attentions(spec.layers))
    encoder = towers.load(factory, vision) if decides(factory.group) else None
    width, square = spec.width * vision.levels, vision.square if has_axes else 0
    return ImageEncoder(encoder, width, square, vision.tile)
