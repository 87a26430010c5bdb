"""Images of Qwen2.5-VL: resized to a number of squares, each of which becomes one embedding."""

from math import ceil, floor, sqrt

import numpy as np
from PIL import Image

from paceline.core.errors import ConfigError, RequestError
from paceline.images.processor import PreparedImage, ProcessorFiles, image_item

LEAST, MOST = 56 * 56, 28 * 28 * 1280  # pixels of an image, unless the files say otherwise
LONGEST_RATIO = 200  # of the longer side by the other
BICUBIC = 3


class SquareProcessor:
    """Prepares images. An image is one item."""

    def __init__(self, files: ProcessorFiles) -> None:
        settings = files.settings
        size = settings.get("size", {})
        self.mark = files.mark(151_655)
        self._resample = files.resample(BICUBIC)
        self._resizes = settings.get("do_resize", True)
        self._square = files.number(settings, "patch_size", 14) * files.number(
            settings, "merge_size", 2
        )  # pixels along a side
        self._least = files.number(settings, "min_pixels", size.get("shortest_edge") or LEAST)
        self._most = files.number(settings, "max_pixels", size.get("longest_edge") or MOST)
        vision = files.vision
        read = files.number(vision, "patch_size", 14) * files.number(
            vision, "spatial_merge_size", 2
        )
        if read != self._square:
            raise ConfigError(
                f"the image processor makes squares of {self._square} pixels, but the vision tower "
                f"reads squares of {read}"
            )

    @property
    def largest(self) -> int:
        """Embeddings of the largest image. An image that is not resized may have more."""
        return max(1, self._most // self._square**2)

    def prepare(self, image: Image.Image) -> PreparedImage:
        if self._resizes:
            image = image.resize(self._size(image), self._resample)
        square = self._square
        if image.width % square or image.height % square:
            raise RequestError(
                f"an image has {image.width} x {image.height} pixels, which must be multiples of "
                f"{square}, since the image processor does not resize images"
            )
        length = (image.width // square) * (image.height // square)
        return PreparedImage([self.mark] * length, (image_item(np.asarray(image), 0, length),))

    def _size(self, image: Image.Image) -> tuple[int, int]:
        """Width and height: multiples of a square, of about the same ratio, with not too many
        pixels and not too few."""
        square, sides = self._square, (image.width, image.height)
        if max(sides) / min(sides) > LONGEST_RATIO:
            raise RequestError(
                f"an image has {image.width} x {image.height} pixels; one side can be "
                f"{LONGEST_RATIO} times as long as the other at most"
            )
        width, height = (round(side / square) * square for side in sides)
        if width * height > self._most:
            smaller = sqrt(image.width * image.height / self._most)
            width, height = (max(1, floor(side / smaller / square)) * square for side in sides)
        elif width * height < self._least:
            larger = sqrt(self._least / (image.width * image.height))
            width, height = (ceil(side * larger / square) * square for side in sides)
        return width, height
