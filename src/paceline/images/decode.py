"""Reads and decodes the images of prompts, within limits."""

import binascii
from base64 import b64decode
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote_to_bytes
from warnings import catch_warnings, simplefilter

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from paceline.core.errors import RequestError
from paceline.core.multimodal import ImageInput, ImagePrompt
from paceline.core.system.files import json_object
from paceline.images.fixed import CanvasProcessor, CropProcessor, GridProcessor, NewlineProcessor
from paceline.images.processor import Encode, ImageProcessor, ProcessorFiles
from paceline.images.tiles import BudgetProcessor, RowProcessor, SquareProcessor, TileProcessor

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
CHANNELS = (1, 3, 4)
WHITE = (255, 255, 255, 255)


def decoded(source: Any, max_pixels: int) -> Image.Image:
    """An image in RGB: of bytes, a data URL, an array [height, width, channels] or a PIL image.

    RequestError if there is none, or one with more pixels.
    """
    if isinstance(source, str):
        source = bytes_of_url(source)
    if isinstance(source, bytes):
        return from_bytes(source, max_pixels)
    if isinstance(source, np.ndarray):
        source = from_array(cast("Any", source))
    if not isinstance(source, Image.Image):
        raise RequestError(
            f"an image is {type(source).__name__!r}; give a PIL image, an array of bytes with the "
            "shape [height, width, 3], the bytes of a file, or a data URL"
        )
    check_size(source, max_pixels)
    with readable("an image"):
        return rgb(source)


@contextmanager
def readable(what: str) -> Generator[None]:
    """Turn errors of a decoder into a RequestError."""
    try:
        yield
    except RequestError:
        raise  # it is a ValueError too
    except Image.DecompressionBombError as error:
        raise RequestError(f"{what} is too large: {error}") from None
    except UnidentifiedImageError:
        raise RequestError(f"{what} is in no known format; use {', '.join(FORMATS)}") from None
    except (OSError, ValueError, SyntaxError, ArithmeticError, LookupError, MemoryError) as error:
        raise RequestError(f"{what} cannot be decoded: {error}") from None


def from_bytes(content: bytes, max_pixels: int) -> Image.Image:
    """The content of a file. Its head says how large it is, before any pixel is decoded."""
    with readable(f"an image of {len(content)} bytes"):
        with catch_warnings():
            simplefilter("ignore", Image.DecompressionBombWarning)  # `check_size` is stricter
            image = Image.open(BytesIO(content), formats=FORMATS)
        check_size(image, max_pixels)
        image.load()
        return rgb(ImageOps.exif_transpose(image))


def from_array(array: np.ndarray[Any, Any]) -> Image.Image:
    if array.ndim != 3 or array.shape[2] not in CHANNELS or array.dtype != np.uint8:  # noqa: PLR2004
        raise RequestError(
            f"an image is an array of {array.dtype} with the shape {list(array.shape)}; it must be "
            "of uint8, with the shape [height, width, 3]"
        )
    return Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)


def check_size(image: Image.Image, max_pixels: int) -> None:
    width, height = image.size
    if width < 1 or height < 1:
        raise RequestError(f"an image has {width} x {height} pixels; it must have at least one")
    if width * height > max_pixels:
        raise RequestError(
            f"an image has {width} x {height} pixels; the most is {max_pixels} (max_image_pixels)"
        )


def rgb(image: Image.Image) -> Image.Image:
    """Transparent parts become white."""
    if "A" not in image.getbands() and image.info.get("transparency") is None:
        return image.convert("RGB")
    layer = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", layer.size, WHITE), layer).convert("RGB")


def bytes_of_url(url: str) -> bytes:
    """The bytes in a data URL. RequestError for any other URL."""
    head, comma, content = url.partition(",")
    if not head.startswith("data:"):
        raise RequestError(
            f"an image has the URL {url!r:.80}; only the server fetches images, and only from "
            "the domains in allowed_media_domains. Give a data URL instead"
        )
    if not comma:
        raise RequestError("the data URL of an image has no comma, and so no data")
    raw = unquote_to_bytes(content)
    if not head.endswith(";base64"):
        return raw
    try:
        return b64decode(raw, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RequestError(f"the data URL of an image is not base64: {error}") from None


def llava(files: ProcessorFiles) -> ImageProcessor:
    """The processor for the tower that config.json names."""
    is_pixtral = files.vision.get("model_type") == "pixtral"
    return RowProcessor(files) if is_pixtral else CropProcessor(files)


# By the name of the architecture in config.json.
PROCESSORS: Mapping[str, Callable[[ProcessorFiles], ImageProcessor]] = {
    "Idefics3ForConditionalGeneration": TileProcessor,
    "SmolVLMForConditionalGeneration": TileProcessor,
    "Qwen2VLForConditionalGeneration": SquareProcessor,
    "Qwen2_5_VLForConditionalGeneration": SquareProcessor,
    "Qwen3VLForConditionalGeneration": partial(SquareProcessor, patch=16),
    "Qwen3VLMoeForConditionalGeneration": partial(SquareProcessor, patch=16),
    "LlavaForConditionalGeneration": llava,
    "Mistral3ForConditionalGeneration": partial(RowProcessor, merge=2),
    "Qwen3_5ForConditionalGeneration": partial(SquareProcessor, patch=16),
    "Qwen3_5MoeForConditionalGeneration": partial(SquareProcessor, patch=16),
    "Gemma3ForConditionalGeneration": NewlineProcessor,
    "InternVLForConditionalGeneration": GridProcessor,
    "Gemma4ForConditionalGeneration": BudgetProcessor,
    "Llama4ForConditionalGeneration": CanvasProcessor,
}


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """Most images of a prompt, and most pixels of an image before it is resized."""

    images: int
    pixels: int


class ImageReader:
    """Reads the images of prompts, on any thread."""

    def __init__(self, processor: ImageProcessor, limits: ImageLimits) -> None:
        self._processor, self._limits = processor, limits

    @staticmethod
    def load(folder: Path, encode: Encode, limits: ImageLimits) -> "ImageReader | None":
        """The reader of a model in a folder; None if the model has no images."""
        names = json_object(folder / "config.json").get("architectures") or [""]
        if (kind := PROCESSORS.get(names[0])) is None:
            return None
        return ImageReader(kind(ProcessorFiles.read(folder, encode)), limits)

    @property
    def largest(self) -> int:
        """The most embeddings of one input."""
        return self._processor.largest

    def read(self, token_ids: Sequence[int], images: Sequence[Any]) -> ImagePrompt:
        """Replace each mark by the next image. RequestError if there are more of one than of the
        other, or an image cannot be read."""
        limits, mark = self._limits, self._processor.mark
        if len(images) > limits.images:
            raise RequestError(
                f"the prompt has {len(images)} images; the most is {limits.images} "
                "(limit_mm_per_prompt)"
            )
        marks = [place for place, token in enumerate(token_ids) if token == mark]
        if len(marks) != len(images):
            raise RequestError(
                f"the prompt has {len(images)} images, but {len(marks)} marks that say where they "
                "belong; give one image for each mark"
            )
        tokens, inputs, begin = list[int](), list[ImageInput](), 0
        joined: Mapping[tuple[int, int], int] = {}
        for place, image in zip(marks, images, strict=True):
            append(tokens, token_ids[begin:place], joined)
            prepared = self._processor.prepare(decoded(image, limits.pixels))
            joined = prepared.joined
            first = append(tokens, prepared.tokens, joined)
            inputs += (replace(one, offset=first + one.offset) for one in prepared.inputs)
            begin = place + 1
        append(tokens, token_ids[begin:], joined)
        return ImagePrompt(tokens, tuple(inputs))


def append(tokens: list[int], more: Sequence[int], joined: Mapping[tuple[int, int], int]) -> int:
    """Append tokens, of which the first may become one with the last that is there. Returns where
    the first one is."""
    first = len(tokens)
    if tokens and more and (both := joined.get((tokens[-1], more[0]))) is not None:
        first -= 1
        tokens[-1], more = both, more[1:]
    tokens += more
    return first
