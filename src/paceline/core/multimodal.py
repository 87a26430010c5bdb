"""Multimodal inputs: their settings, embeddings, and prompts with images in place."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from paceline.core.arrays import I32, NO_I32, NO_INDEX, Index
from paceline.core.errors import ConfigError, RequestError
from paceline.core.settings.checks import check_types, not_negative
from paceline.core.system.files import json_object


@dataclass(frozen=True, slots=True)
class MultimodalConfig:
    """Limits of the encoder and of its cache. An embedding stands for one position of an image.
    The names are those of vLLM.

    Attributes:
        max_num_encoder_input_tokens (embeddings): Embeddings of images that one step computes; 0:
            as max_num_batched_tokens, or those of the largest image if it has more.
        encoder_cache_size (embeddings): Embeddings of images that are kept; 0: as
            max_num_batched_tokens, or those of the largest image if it has more.
        disable_chunked_mm_input: Compute all tokens of an image in one step.
    """

    max_num_encoder_input_tokens: int = 0
    encoder_cache_size: int = 0
    disable_chunked_mm_input: bool = False

    def __post_init__(self) -> None:
        check_types(self)
        not_negative(self, "max_num_encoder_input_tokens", "encoder_cache_size")


OWN, OF_ALL = "preprocessor_config.json", "processor_config.json"


def image_settings(folder: Path) -> dict[str, Any]:
    """The settings of the image processor in HF's layout; empty if the folder has none.

    Newer files have one file for all processors of a model.
    """
    if (folder / OWN).is_file():
        return json_object(folder / OWN)
    if not (folder / OF_ALL).is_file():
        return {}
    found: Any = json_object(folder / OF_ALL).get("image_processor", {})
    if not isinstance(found, dict):
        raise ConfigError(f"{folder / OF_ALL}: image_processor is no object")
    return cast("dict[str, Any]", found)


@dataclass(frozen=True, slots=True, eq=False)
class Encoding:
    """An image to encode before the rows of a step are computed.

    Its content is in the request of the sequence in `slot`, which has a row in the same step. It
    overwrites `rows` of the encoder store, which no later step reads.
    """

    slot: int
    image: int  # its index in `Request.images`
    identity: str
    rows: I32  # [length]; rows of the encoder store that its embeddings go to


@dataclass(frozen=True, slots=True, eq=False)
class Embedded:
    """Positions of a step that read an embedding of an image instead of that of their token.

    Position `offset[i]` of row `row[i]` of the plan, counted from the row's first, reads row
    `source[i]` of the encoder store. Sorted by row, then by position.
    """

    row: Index  # [embedded]
    offset: I32  # [embedded]
    source: I32  # [embedded]

    def __len__(self) -> int:
        return len(self.row)


NOTHING_EMBEDDED = Embedded(NO_INDEX, NO_I32, NO_I32)


@dataclass(frozen=True, slots=True)
class ImageArray:
    """An array as plain values, so that every message format can carry it."""

    name: str
    dtype: str  # numpy's name of it
    shape: tuple[int, ...]
    cells: bytes


@dataclass(frozen=True, slots=True)
class ImageContent:
    """Input arrays of a model's encoder, under the names of its preprocessor.

    ```py
    content = ImageContent.of("image", {"pixel_values": pixels})
    content["pixel_values"]  # read-only, without a copy
    ```
    """

    modality: str
    arrays: tuple[ImageArray, ...]

    @staticmethod
    def of(modality: str, arrays: Mapping[str, npt.NDArray[Any]]) -> "ImageContent":
        kept = (
            ImageArray(name, array.dtype.name, array.shape, array.tobytes())
            for name, array in arrays.items()
        )
        return ImageContent(modality, tuple(kept))

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        array = self._named(name)
        return np.frombuffer(array.cells, array.dtype).reshape(array.shape)

    def has(self, name: str) -> bool:
        return any(array.name == name for array in self.arrays)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._named(name).shape

    def without_cells(self) -> "ImageContent":
        """The shapes alone, for processes that do not encode the image."""
        return ImageContent(self.modality, tuple(replace(one, cells=b"") for one in self.arrays))

    def _named(self, name: str) -> ImageArray:
        for array in self.arrays:
            if array.name == name:
                return array
        raise KeyError(f"this {self.modality} has no array {name!r}")


@dataclass(frozen=True, slots=True)
class ImageInput:
    """An image in a prompt, or a part of one: positions whose embeddings an encoder computes.

    Inputs of one identity have the same content, size and embeddings, one for each position. A
    picture in tiles with tokens between them is several inputs; tokens between embeddings that are
    computed together, such as ends of rows, belong to the input, and the encoder returns theirs.

    The scheduler never reads `content`, and recordings do not keep it.
    """

    identity: str
    offset: int  # of its first position in the prompt
    length: int
    content: ImageContent | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        kinds = type(self.identity), type(self.offset), type(self.length)
        if kinds != (str, int, int) or self.offset < 0 or self.length < 1:
            raise RequestError(f"{self!r} is no image with an identity, an offset and a length")

    @property
    def end(self) -> int:
        """The position after its last one."""
        return self.offset + self.length

    def without_content(self) -> "ImageInput":
        return ImageInput(self.identity, self.offset, self.length)

    def without_cells(self) -> "ImageInput":
        content = None if self.content is None else self.content.without_cells()
        return replace(self, content=content)


def wrong_images(images: tuple[ImageInput, ...], prompt: int) -> str:
    """What is wrong with the images of a prompt of `prompt` tokens; empty if nothing is."""
    lengths: dict[str, int] = {}
    end = 0
    for image in images:
        if not isinstance(image, ImageInput):  # pyright: ignore[reportUnnecessaryIsInstance]
            return f"{image!r} is no image"
        if image.end > prompt:
            return f"{image!r} ends after the prompt of {prompt} tokens"
        if image.offset < end:
            return f"{image!r} begins before position {end}, where the image before it ends"
        if lengths.setdefault(image.identity, image.length) != image.length:
            return f"{image!r} has the identity of an image of another length"
        end = image.end
    return ""


@dataclass(frozen=True, slots=True)
class ImagePrompt:
    """Token ids with room for images, and the images."""

    token_ids: list[int]
    images: tuple[ImageInput, ...]
