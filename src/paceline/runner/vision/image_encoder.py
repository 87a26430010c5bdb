"""Turns the images of prompts into embeddings."""

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.core.item import ItemContent
from paceline.runner.vision.tower import Tower

PIXELS = "pixels"  # the array of an image: [height, width, channels], bytes


class ImageEncoder:
    """A vision tower behind the interface of the encoder store.

    square   pixels along each side of what becomes one embedding, where positions have rows and
             columns; 0: a position is one number
    """

    def __init__(self, tower: Tower, width: int, square: int = 0) -> None:
        self.width, self.tower, self.square = width, tower, square

    def encode(self, items: Sequence[ItemContent]) -> list[Tensor]:
        """The embeddings of each image, [n, width]."""
        return self.tower([torch.from_numpy(item[PIXELS].copy()) for item in items])
