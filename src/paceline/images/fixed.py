"""Images for towers of one size: resized and cropped as a whole, or cut into a grid of tiles."""

from math import inf
from typing import Any

import numpy as np
from PIL import Image

from paceline.core.errors import ConfigError
from paceline.images.processor import PreparedImage, ProcessorFiles, image_input

BICUBIC = 3
Size = tuple[int, int]  # width and height, as Pillow has them


class CropProcessor:
    """Prepares images for Llava. Each is padded to a square if the settings say so, resized, and
    cropped in the middle."""

    def __init__(self, files: ProcessorFiles) -> None:
        self._settings = settings = files.settings
        side, patches = tower_sides(files, 336, 14)
        self.mark, self.largest = files.mark(32_000), patches**2
        self._resample = files.resample(BICUBIC)
        size: Any = settings.get("size", {"width": side, "height": side})
        self._size = size if settings.get("do_resize", True) else None
        is_cropped = "crop_size" in settings and settings.get("do_center_crop", True)
        self._crop = sides(settings["crop_size"]) if is_cropped else None
        made = sides(size) if self._crop is None else self._crop
        if made != (side, side):
            raise ConfigError(
                f"the image processor makes images of {made[0]} x {made[1]} pixels, but the vision "
                f"tower reads images of {side} x {side}"
            )
        mean: Any = settings.get("image_mean") or (0.0, 0.0, 0.0)
        self._background = tuple(int(255 * one) for one in mean)

    def prepare(self, image: Image.Image) -> PreparedImage:
        if self._settings.get("do_pad"):
            image = self._padded(image)
        if self._size is not None:
            image = image.resize(resized(image.size, self._size), self._resample)
        if self._crop is not None:
            image = cropped(image, self._crop)
        pixels, length = np.asarray(image), self.largest
        return PreparedImage([self.mark] * length, (image_input(pixels, 0, length),))

    def _padded(self, image: Image.Image) -> Image.Image:
        """The image in the middle of a square of the mean colour."""
        longest = max(image.size)
        left, top = ((longest - side) // 2 for side in image.size)
        square = Image.new("RGB", (longest, longest), self._background)
        square.paste(image, (left, top))
        return square


def resized(image: Size, wanted: Any) -> Size:
    """The size that the settings ask for: of the shorter side, at the same ratio, or of both."""
    shortest = wanted if isinstance(wanted, int) else wanted.get("shortest_edge")
    if shortest is None:
        return sides(wanted)
    least = min(image)
    width, height = (shortest if side == least else shortest * side // least for side in image)
    return width, height


def sides(wanted: Any) -> Size:
    """A width and a height in the settings."""
    if isinstance(wanted, int):
        return wanted, wanted
    try:
        return int(wanted["width"]), int(wanted["height"])
    except (KeyError, TypeError, ValueError):
        raise ConfigError(
            f"the image processor has a size {wanted!r}; it must have a width and a height"
        ) from None


def cropped(image: Image.Image, size: Size) -> Image.Image:
    """The middle of an image; black around it where the image is smaller."""
    width, height = size
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return image.crop((left, top, left + width, top + height))


def tower_sides(files: ProcessorFiles, image: int, patch: int) -> Size:
    """Pixels and patches along each side of the images that the tower reads."""

    def side(key: str, default: int) -> int:
        value: Any = files.vision.get(key)
        return files.number({key: value[0] if isinstance(value, list) else value}, key, default)

    pixels = side("image_size", image)
    return pixels, pixels // side("patch_size", patch)


LEAST, MOST = 1, 12  # tiles of an image, unless the files say otherwise
START, END = "<img>", "</img>"


class GridProcessor:
    """Prepares images for InternVL: a grid of square tiles, and the whole behind them if there are
    several. Each is an input.

    start   tile 1   tile 2   …   the whole   end
    """

    def __init__(self, files: ProcessorFiles) -> None:
        settings = files.settings
        self.mark = files.mark(151_667)
        self._tile, patches = tower_sides(files, 448, 14)
        self.largest = round(patches * float(files.config.get("downsample_ratio", 0.5))) ** 2
        self._resample = files.resample(BICUBIC)
        size = sides(settings.get("size", self._tile))
        if size != (self._tile, self._tile):
            raise ConfigError(
                f"the image processor makes tiles of {size[0]} x {size[1]} pixels, but the vision "
                f"tower reads images of {self._tile}"
            )
        self._least = files.number(settings, "min_patches", LEAST)
        self._most = files.number(settings, "max_patches", MOST)
        self._start, self._end = files.encode(START), files.encode(END)

    def prepare(self, image: Image.Image) -> PreparedImage:
        tile, length = self._tile, self.largest
        columns, rows = self._grid(image.size) if self._most > 1 else (1, 1)
        whole = image.resize((columns * tile, rows * tile), self._resample)
        parts = [
            whole.crop((left, top, left + tile, top + tile))
            for top in range(0, whole.height, tile)
            for left in range(0, whole.width, tile)
        ]
        if len(parts) > 1:
            parts.append(image.resize((tile, tile), self._resample))
        inputs = (
            image_input(np.asarray(part), len(self._start) + place * length, length)
            for place, part in enumerate(parts)
        )
        marks = [self.mark] * length * len(parts)
        return PreparedImage([*self._start, *marks, *self._end], tuple(inputs))

    def _grid(self, image: Size) -> Size:
        """Columns and rows of tiles whose ratio is nearest to that of the image. Of equal ratios,
        the grid with more tiles, unless it has more than twice the pixels of the image."""
        width, height = image
        best, distance = (1, 1), inf
        for grid in self._grids():
            columns, rows = grid
            far = abs(width / height - columns / rows)
            is_filled = 2 * width * height > self._tile**2 * columns * rows
            if far < distance or (far == distance and is_filled):
                best, distance = grid, far
        return best

    def _grids(self) -> list[Size]:
        """All grids with a number of tiles in the limits, by that number."""
        each = range(1, self._most + 1)
        found = [
            (columns, rows)
            for columns in each
            for rows in each
            if self._least <= columns * rows <= self._most
        ]
        return sorted(found, key=lambda grid: grid[0] * grid[1])
