"""Puts images in the place of their marks in a prompt."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline.core.errors import RequestError
from paceline.core.image_prompt import ImagePrompt
from paceline.core.item import Item
from paceline.core.json_file import json_object
from paceline.images.decode import decoded
from paceline.images.processor import Encode, ImageProcessor, ProcessorFiles
from paceline.images.squares import SquareProcessor
from paceline.images.tiles import TileProcessor

# By the name of the architecture in config.json.
PROCESSORS: Mapping[str, Callable[[ProcessorFiles], ImageProcessor]] = {
    "Idefics3ForConditionalGeneration": TileProcessor,
    "SmolVLMForConditionalGeneration": TileProcessor,
    "Qwen2_5_VLForConditionalGeneration": SquareProcessor,
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
        """Embeddings of the largest item that an image becomes."""
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
        tokens, items, begin = list[int](), list[Item](), 0
        for place, image in zip(marks, images, strict=True):
            tokens += token_ids[begin:place]
            prepared = self._processor.prepare(decoded(image, limits.pixels))
            items += (replace(one, offset=len(tokens) + one.offset) for one in prepared.items)
            tokens += prepared.tokens
            begin = place + 1
        tokens += token_ids[begin:]
        return ImagePrompt(tokens, tuple(items))
