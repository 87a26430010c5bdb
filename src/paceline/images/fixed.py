"""Images for towers of one size: resized and cropped as a whole, or cut into a grid of tiles."""

from math import floor, inf
from typing import Any

import numpy as np
from PIL import Image

from paceline.core.errors import ConfigError
from paceline.images.processor import Encode, Pixels, PreparedImage, ProcessorFiles, image_input

BILINEAR, BICUBIC = 2, 3
Size = tuple[int, int]  # width and height, as Pillow has them


class CropProcessor:
    """Prepares images for Llava. Each is padded to a square if the settings say so, resized, and
    cropped in the middle."""

    def __init__(self, files: ProcessorFiles) -> None:
        side, patches = tower_sides(files, 336, 14)
        self.mark, self.largest = files.mark(32_000), patches**2
        self._cropped = Cropped(files, side, BICUBIC)

    def prepare(self, image: Image.Image) -> PreparedImage:
        pixels, length = self._cropped(image), self.largest
        return PreparedImage([self.mark] * length, (image_input(pixels, 0, length),))


class Cropped:
    """Makes images of one size, as the settings say."""

    def __init__(self, files: ProcessorFiles, side: int, resample: int) -> None:
        """The tower reads images of `side` pixels along each side."""
        self._settings = settings = files.settings
        self._resample = files.resample(resample)
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

    def __call__(self, image: Image.Image) -> Pixels:
        if self._settings.get("do_pad"):
            image = self._padded(image)
        if self._size is not None:
            image = image.resize(resized(image.size, self._size), self._resample)
        if self._crop is not None:
            image = cropped(image, self._crop)
        return np.asarray(image)

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


BEFORE, NEWLINES = "\n\n", 32  # around an image; the longest run that may be one token


class NewlineProcessor:
    """Prepares images for Gemma 3. Newlines around an image become one token with those of the
    text, if the tokenizer has one for them.

    newlines   start   image image …   end   newlines
    """

    def __init__(self, files: ProcessorFiles) -> None:
        if files.settings.get("do_pan_and_scan"):
            raise ConfigError("the image processor has do_pan_and_scan, which is not supported")
        config = files.config
        side, _ = tower_sides(files, 224, 16)
        self.largest = files.number(config, "mm_tokens_per_image", 256)
        older = files.number(config, "boi_token_index", 255_999)
        self.mark = files.number(config, "boi_token_id", older)
        older = files.number(config, "eoi_token_index", 256_000)
        end = files.number(config, "eoi_token_id", older)
        self._cropped = Cropped(files, side, BILINEAR)
        newlines = files.encode(BEFORE)
        self._before, self._after = [*newlines, self.mark], [end, *newlines]
        self._image, self._joined = files.mark(262_144), joined_newlines(files.encode)

    def prepare(self, image: Image.Image) -> PreparedImage:
        pixels, length = self._cropped(image), self.largest
        tokens = [*self._before, *[self._image] * length, *self._after]
        inputs = (image_input(pixels, len(self._before), length),)
        return PreparedImage(tokens, inputs, self._joined)


def joined_newlines(encode: Encode) -> dict[tuple[int, int], int]:
    """For two tokens of newlines, the token of all of them. One has as many as stand around an
    image."""
    runs = (encode("\n" * number) for number in range(1, NEWLINES + 1))
    ids = {number: run[0] for number, run in enumerate(runs, 1) if len(run) == 1}
    around, found = ids.get(len(BEFORE)), dict[tuple[int, int], int]()
    for number, id in ids.items():
        both = ids.get(number + len(BEFORE))
        if around is not None and both is not None:
            found[id, around] = found[around, id] = both
    return found


CANVAS_TOKENS = (
    *("<|image_start|>", "<|tile_x_separator|>", "<|tile_y_separator|>"),
    *("<|image|>", "<|image_end|>"),
)


class CanvasProcessor:
    """Prepares images for Llama 4: in the corner of a grid of square tiles, and the whole behind
    them if there are several. Each is an input.

    start   tile   beside   tile   below
            tile   beside   tile   below   mark   the whole   end
    """

    def __init__(self, files: ProcessorFiles) -> None:
        settings, vision = files.settings, files.vision
        self._tile, patches = tower_sides(files, 448, 14)
        size = sides(settings.get("size", {"height": 336, "width": 336}))
        if size != (self._tile, self._tile) or not settings.get("do_resize", True):
            raise ConfigError(
                f"the image processor makes tiles of {size[0]} x {size[1]} pixels, but the vision "
                f"tower reads images of {self._tile}; and do_resize must be on"
            )
        merge = round(1 / float(vision.get("pixel_shuffle_ratio", 0.5)))
        self.largest, self._patch = (patches // merge) ** 2, files.mark(200_092)
        self._start, self._beside, self._below, self.mark, self._end = map(
            files.token, CANVAS_TOKENS
        )
        self._resample = files.resample(BILINEAR)
        self._most = files.number(settings, "max_patches", 16)
        self._fills = bool(settings.get("resize_to_max_canvas"))

    def prepare(self, image: Image.Image) -> PreparedImage:
        tile, (columns, rows) = self._tile, self._grid(image.size)
        parts: list[Image.Image] = []
        tokens, offsets = [self._start], list[int]()
        if columns * rows > 1:
            canvas = Image.new("RGB", (columns * tile, rows * tile))
            canvas.paste(image.resize(self._within(image.size, canvas.size), self._resample))
            for row in range(rows):
                for column in range(columns):
                    left, top = column * tile, row * tile
                    parts.append(canvas.crop((left, top, left + tile, top + tile)))
                    offsets.append(len(tokens))
                    is_last = column == columns - 1
                    tokens += [self._patch] * self.largest
                    tokens.append(self._below if is_last else self._beside)
            parts.append(image.resize((tile, tile), self._resample))
        else:
            canvas = Image.new("RGB", (tile, tile))
            canvas.paste(image.resize(self._within(image.size, canvas.size), self._resample))
            parts.append(canvas)
        tokens.append(self.mark)
        offsets.append(len(tokens))
        tokens += [self._patch] * self.largest + [self._end]
        inputs = (
            image_input(np.asarray(part), offset, self.largest)
            for part, offset in zip(parts, offsets, strict=True)
        )
        return PreparedImage(tokens, tuple(inputs))

    def _grid(self, image: Size) -> Size:
        """Columns and rows of the tiles. Of all grids, those count in which the image becomes least
        larger, or else least smaller; of these, the one with the fewest tiles."""
        grids = [
            (columns, rows)
            for columns in range(1, self._most + 1)
            for rows in range(1, self._most // columns + 1)
        ]
        scales = {
            grid: min(self._tile * number / side for number, side in zip(grid, image, strict=True))
            for grid in grids
        }
        larger = [scale for scale in scales.values() if scale >= 1]
        if larger:
            scale = max(larger) if self._fills else min(larger)
        else:
            scale = max(scales.values())
        fitting = [grid for grid in grids if scales[grid] == scale]
        return min(fitting, key=lambda grid: grid[0] * grid[1])

    def _within(self, image: Size, canvas: Size) -> Size:
        """The size of an image on its canvas, at the same ratio. Its longer side grows to that of a
        tile at most, unless the settings say otherwise."""
        width, height = canvas
        if not self._fills:
            width, height = (
                min(max(side, self._tile), most) for side, most in zip(image, canvas, strict=True)
            )
        by_width, by_height = width / image[0], height / image[1]
        if by_width < by_height:
            return width, max(min(floor(image[1] * by_width), height), 1)
        return max(min(floor(image[0] * by_height), width), 1), height


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
