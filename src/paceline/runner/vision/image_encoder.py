"""Turns the images of prompts into embeddings."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from math import isqrt

import torch
from torch import Tensor

from paceline.core.multimodal import ImageContent, ImageInput
from paceline.runner.layers.factory import LayerFactory
from paceline.runner.layers.linear import Linear
from paceline.runner.models.architecture import DecoderSpec, attentions
from paceline.runner.parallel.group import decides
from paceline.runner.tensors import from_numpy, to_ints
from paceline.runner.vision import towers
from paceline.runner.vision.spec import ReadsItself, Tile

# Images [height, width, channels] in bytes to embeddings [n, width] each.
Tower = Callable[[Sequence[Tensor]], list[Tensor]]

CHANNELS = 3
PIXELS = "pixels"  # an array of an image: [height, width, channels], bytes
# Another, if tokens stand among its embeddings: [positions], ids of tokens, or -1 for embeddings.
TOKENS = "tokens"


class ImageEncoder:
    """A vision tower behind the interface of the encoder store.

    tower    None on ranks other than 0, which encodes for all
    width    of an embedding: that of the decoder, or of several inputs of layers, side by side
    square   pixels along each side of what becomes one embedding
    tile     what an image of a fixed size has; None: images have any size
    reads_itself   in which layers of the decoder all positions of an image read each other
    has_axes       positions have rows and columns
    token          the embedding of a token, [1, width]
    """

    def __init__(
        self,
        tower: Tower | None,
        width: int,
        square: int = 0,
        tile: Tile | None = None,
        reads_itself: ReadsItself = "never",
        has_axes: bool = False,
        token: Callable[[int], Tensor] | None = None,
    ) -> None:
        self.reads_itself: ReadsItself = reads_itself
        self.has_axes, self.token = has_axes, token
        self.width, self.tower, self.square, self.tile = width, tower, square, tile

    @property
    def encodes(self) -> bool:
        return self.tower is not None

    def encode(self, images: Sequence[ImageContent]) -> list[Tensor]:
        """The embeddings of each image, [n, width]."""
        assert self.tower is not None, "rank 0 encodes images"
        found = self.tower([from_numpy(image[PIXELS].copy()) for image in images])
        return [self._among_tokens(*pair) for pair in zip(found, images, strict=True)]

    def smallest(self) -> ImageInput:
        """The smallest image that the model reads, for the beginning of a prompt."""
        tile = self.tile or Tile(self.square, 1)
        content = ImageContent.of("image", {PIXELS: blank(tile.side, tile.side).numpy()})
        return ImageInput("smallest", 0, tile.embeddings, content)

    def _among_tokens(self, found: Tensor, image: ImageContent) -> Tensor:
        """Embeddings of an image with those of the tokens among them."""
        if not image.has(TOKENS):
            return found
        assert self.token is not None, "an encoder without embeddings of tokens"
        tokens = from_numpy(image[TOKENS].copy()).to(found.device)
        placed = found.new_empty(len(tokens), found.shape[1])
        placed[tokens < 0] = found
        for id in sorted({*to_ints(tokens)} - {-1}):
            placed[tokens == id] = self.token(id).to(found)
        return placed

    def rehearse(self, embeddings: int) -> None:
        """Encode as many images as have so many embeddings, to see what memory that takes. Where
        images have any size, it is one, since the tower takes one at a time."""
        if self.tower is None:
            return
        if (tile := self.tile) is not None:
            self.tower([blank(tile.side, tile.side)] * max(1, embeddings // tile.embeddings))
        else:
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
    if encoder is not None and factory.is_invariant:
        encoder = partial(one_by_one, encoder)
    return ImageEncoder(
        encoder,
        spec.width * vision.levels,
        vision.square,
        vision.tile,
        vision.reads_itself,
        has_axes,
        token_reader(factory, spec),
    )


def one_by_one(tower: Tower, images: Sequence[Tensor]) -> list[Tensor]:
    """The embeddings of each image, which have the bits that the image has alone."""
    return [found for image in images for found in tower([image])]


def token_reader(factory: LayerFactory[Linear], spec: DecoderSpec) -> Callable[[int], Tensor]:
    """Reads embeddings of single tokens from the checkpoint."""
    whole = replace(spec.embedding, cut=None, shape=spec.embedding.whole_shape)
    scale = factory.embedding_scale(spec)

    @cache
    def token(id: int) -> Tensor:
        return factory.read(whole.part(0, (id, id + 1))) * scale

    return token
