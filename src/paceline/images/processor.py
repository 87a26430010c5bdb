"""The interface of image processors, and how that of a model is found."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image

from paceline.core.errors import ConfigError
from paceline.core.multimodal import ImageContent, ImageInput, image_settings
from paceline.core.system.files import json_object

Pixels = npt.NDArray[np.uint8]  # [height, width, channels]
Encode = Callable[[str], list[int]]  # a text without special tokens around it
KEY_BYTES = 16
RESAMPLE_METHODS = 6


@dataclass(frozen=True, slots=True)
class PreparedImage:
    """Tokens that replace the mark of an image in a prompt, and the encoder's inputs in them.

    joined   for a token at an edge and the one that comes to stand beside it, left and right: the
             token that a tokenizer has for both together
    """

    tokens: list[int]
    inputs: tuple[ImageInput, ...]
    joined: Mapping[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])


class ImageProcessor(Protocol):
    """Prepares images for a model, as its training did."""

    @property
    def mark(self) -> int:
        """The token that the chat template writes for an image."""
        ...

    @property
    def largest(self) -> int:
        """The most embeddings of one input."""
        ...

    def prepare(self, image: Image.Image) -> PreparedImage: ...


@dataclass(frozen=True, slots=True, eq=False)
class ProcessorFiles:
    """What the files of a model say about its images.

    config     of the model
    vision     of its vision tower
    settings   of the image processor
    encode     by the tokenizer of the model
    """

    config: Mapping[str, Any]
    vision: Mapping[str, Any]
    settings: Mapping[str, Any]
    encode: Encode

    @staticmethod
    def read(folder: Path, encode: Encode) -> "ProcessorFiles":
        config = json_object(folder / "config.json")
        return ProcessorFiles(
            config, config.get("vision_config", {}), image_settings(folder), encode
        )

    def number(self, among: Mapping[str, Any], key: str, default: int) -> int:
        value = among.get(key)
        value = default if value is None else value
        if type(value) is not int or value < 1:
            raise ConfigError(f"the image processor has {key} = {value!r}; it must be positive")
        return value

    def mark(self, default: int) -> int:
        """The id of the token for an image."""
        older = self.number(self.config, "image_token_index", default)
        return self.number(self.config, "image_token_id", older)

    def token(self, name: str) -> int:
        """The id of a special token."""
        ids = self.encode(name)
        if len(ids) != 1:
            raise ConfigError(f"the tokenizer has no token {name!r}, which images need")
        return ids[0]

    def resample(self, default: int) -> Image.Resampling:
        value = self.settings.get("resample", default)
        if value not in range(RESAMPLE_METHODS):
            raise ConfigError(f"the image processor has resample = {value!r}; it must be 0 to 5")
        return Image.Resampling(value)


def image_input(
    pixels: Pixels, offset: int, length: int, tokens: npt.NDArray[np.int64] | None = None
) -> ImageInput:
    """An image, or a part of one, as an input. Equal pixels have one identity. `tokens` are those
    among its embeddings, which have -1 there."""
    content = np.ascontiguousarray(pixels)
    digest = blake2b(str(content.shape).encode(), digest_size=KEY_BYTES, person=b"paceline-image")
    digest.update(content.data)
    arrays: dict[str, npt.NDArray[Any]] = {"pixels": content}
    if tokens is not None:
        arrays["tokens"] = tokens
    return ImageInput(digest.hexdigest(), offset, length, ImageContent.of("image", arrays))
