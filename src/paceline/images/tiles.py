"""Images of Qwen and Pixtral: resized to whole squares; of Idefics3: cut into tiles, and shown as a
whole."""

from dataclasses import dataclass
from math import ceil, floor, sqrt

import numpy as np
from PIL import Image

from paceline.core.errors import ConfigError, RequestError
from paceline.images.processor import PreparedImage, ProcessorFiles, image_input

LEAST, MOST = 56 * 56, 28 * 28 * 1280  # pixels of an image, unless the files say otherwise
LONGEST_RATIO = 200  # of the longer side by the other
BICUBIC = 3


class SquareProcessor:
    """Prepares images. An image is one input."""

    def __init__(self, files: ProcessorFiles, patch: int = 14) -> None:
        """`patch` is the default of the tower, in pixels."""
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
        read = files.number(vision, "patch_size", patch) * files.number(
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
        return PreparedImage([self.mark] * length, (image_input(np.asarray(image), 0, length),))

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


BREAK, END = "[IMG_BREAK]", "[IMG_END]"


class RowProcessor:
    """Prepares images for Pixtral. An image is one input, in which tokens end its rows.

    image image image   break
    image image image   end
    """

    def __init__(self, files: ProcessorFiles, merge: int = 1) -> None:
        """`merge` is the default of the model: patches along each side of an embedding."""
        settings = files.settings
        self.mark = files.mark(10)
        self._resample = files.resample(BICUBIC)
        self._square = files.number(files.vision, "patch_size", 16) * files.number(
            files.config, "spatial_merge_size", merge
        )
        self._longest = files.number(settings.get("size", {}), "longest_edge", 1024)
        self._break, self._end = (files.token(name) for name in (BREAK, END))

    @property
    def largest(self) -> int:
        side = ceil(self._longest / self._square)
        return side * (side + 1)

    def prepare(self, image: Image.Image) -> PreparedImage:
        columns, rows = self._squares(image)
        image = image.resize((columns * self._square, rows * self._square), self._resample)
        tokens = ([self.mark] * columns + [self._break]) * rows
        tokens[-1] = self._end
        among = np.array([-1 if token == self.mark else token for token in tokens], np.int64)
        return PreparedImage(tokens, (image_input(np.asarray(image), 0, len(tokens), among),))

    def _squares(self, image: Image.Image) -> tuple[int, int]:
        """Columns and rows. A side that is longer than it may be shrinks with the other."""
        ratio = max(max(image.size) / self._longest, 1.0)
        columns, rows = (max(1, ceil(floor(side / ratio) / self._square)) for side in image.size)
        return columns, rows


class BudgetProcessor:
    """Prepares images for Gemma 4: whole squares, as many as fit into a number of embeddings.

    start   image image …   end
    """

    def __init__(self, files: ProcessorFiles) -> None:
        settings, vision, config = files.settings, files.vision, files.config
        merge = files.number(settings, "pooling_kernel_size", 3)
        self._square = files.number(settings, "patch_size", 16) * merge  # pixels along a side
        read = files.number(vision, "patch_size", 16) * files.number(
            vision, "pooling_kernel_size", 3
        )
        if read != self._square:
            raise ConfigError(
                f"the image processor makes squares of {self._square} pixels, but the vision tower "
                f"reads squares of {read}"
            )
        self.largest = files.number(settings, "max_soft_tokens", 280)
        self.mark = files.mark(258_880)
        self._start = files.number(config, "boi_token_id", 255_999)
        self._end = files.number(config, "eoi_token_id", 258_882)
        self._resample = files.resample(BICUBIC)
        self._resizes = settings.get("do_resize", True)

    def prepare(self, image: Image.Image) -> PreparedImage:
        square = self._square
        if self._resizes:
            columns, rows = self._squares(image)
            if (size := (columns * square, rows * square)) != image.size:
                image = image.resize(size, self._resample)
        columns, rows = image.width // square, image.height // square
        if (columns * square, rows * square) != image.size or columns * rows > self.largest:
            raise RequestError(
                f"an image has {image.width} x {image.height} pixels, which must be multiples of "
                f"{square} and {self.largest} squares at most, since the image processor does not "
                "resize images"
            )
        length = columns * rows
        tokens = [self._start, *[self.mark] * length, self._end]
        return PreparedImage(tokens, (image_input(np.asarray(image), 1, length),))

    def _squares(self, image: Image.Image) -> tuple[int, int]:
        """Columns and rows, at about the same ratio. A side has at least one."""
        most, square = self.largest, self._square
        factor = sqrt(most * square**2 / (image.width * image.height))
        columns, rows = (floor(factor * side / square) for side in image.size)
        if not rows:
            return min(image.width // image.height, most), 1
        if not columns:
            return 1, min(image.height // image.width, most)
        return columns, rows


IMAGE, AROUND, GLOBAL = "<image>", "<fake_token_around_image>", "<global-img>"
TILE, LONGEST = 364, 4 * 364  # pixels, unless the files say otherwise
LARGEST = 4096  # pixels along a side of a resized image
LANCZOS = 1


@dataclass(frozen=True, slots=True)
class Size:
    height: int
    width: int


class TileProcessor:
    """Prepares images. Each tile is an input; tokens between tiles say which row and column follow.

    around row 1 col 1 image image …  around row 1 col 2 image …   newline
    …                                                              newline
    newline  around global image image …  around
    """

    def __init__(self, files: ProcessorFiles) -> None:
        settings, vision = files.settings, files.vision
        self.mark = files.mark(128_257)
        self._files, self._resample = files, files.resample(LANCZOS)
        self._tile = files.number(
            settings.get("max_image_size", {}), "longest_edge", TILE
        )  # pixels along a side
        side = files.number(vision, "image_size", 224)
        if side != self._tile:
            raise ConfigError(
                f"the image processor makes tiles of {self._tile} pixels (max_image_size), but the "
                f"vision tower reads images of {side}"
            )
        self._longest = files.number(settings.get("size", {}), "longest_edge", LONGEST)
        self._resizes = settings.get("do_resize", True)
        self._splits = settings.get("do_image_splitting", True)
        squares = side // files.number(vision, "patch_size", 32)
        self._length = (squares // files.number(files.config, "scale_factor", 2)) ** 2
        self._tokens: dict[Size, list[int]] = {}  # of so many rows and columns of tiles

    @property
    def largest(self) -> int:
        """Embeddings of a tile."""
        return self._length

    def prepare(self, image: Image.Image) -> PreparedImage:
        tile = self._tile
        if self._resizes:
            image = self._resized(image, first_size(image, self._longest))
        grid = Size(0, 0)
        parts: list[Image.Image] = []
        if self._splits:
            image = self._resized(image, whole_tiles(image, tile))
            if max(image.size) > tile:
                grid = Size(image.height // tile, image.width // tile)
                parts = [
                    image.crop((left, top, left + tile, top + tile))
                    for top in range(0, image.height, tile)
                    for left in range(0, image.width, tile)
                ]
        parts.append(self._resized(image, Size(tile, tile)))
        tokens = self._tokens_of(grid)
        marks = np.flatnonzero(np.array(tokens) == self.mark)[:: self._length].tolist()
        inputs = (
            image_input(np.asarray(part), offset, self._length)
            for part, offset in zip(parts, marks, strict=True)
        )
        return PreparedImage(tokens, tuple(inputs))

    def _resized(self, image: Image.Image, size: Size) -> Image.Image:
        return image.resize((size.width, size.height), self._resample)

    def _tokens_of(self, grid: Size) -> list[int]:
        if grid not in self._tokens:
            images = IMAGE * self._length
            text = "".join(
                "".join(
                    f"{AROUND}<row_{row}_col_{column}>{images}"
                    for column in range(1, grid.width + 1)
                )
                + "\n"
                for row in range(1, grid.height + 1)
            )
            text += ("\n" if text else "") + f"{AROUND}{GLOBAL}{images}{AROUND}"
            self._tokens[grid] = self._files.encode(text)
        return self._tokens[grid]


def first_size(image: Image.Image, longest: int) -> Size:
    """The longer side has `longest` pixels, the other an even number, or fewer of both."""
    height, width = image.height, image.width
    ratio = width / height
    if width >= height:
        width, height = longest, int(longest / ratio)
        height += height % 2
    else:
        height, width = longest, int(longest * ratio)
        width += width % 2
    height, width = max(height, 1), max(width, 1)
    ratio = width / height
    if width >= height and width > LARGEST:
        height, width = int(LARGEST / ratio), LARGEST
    elif height > LARGEST:
        height, width = LARGEST, int(LARGEST * ratio)
    return Size(max(height, 1), max(width, 1))


def whole_tiles(image: Image.Image, tile: int) -> Size:
    """Room for whole tiles, at about the same ratio of sides."""
    height, width = image.height, image.width
    ratio = width / height
    if width >= height:
        width = ceil(width / tile) * tile
        height = ceil(int(width / ratio) / tile) * tile
    else:
        height = ceil(height / tile) * tile
        width = ceil(int(height * ratio) / tile) * tile
    return Size(height, width)
