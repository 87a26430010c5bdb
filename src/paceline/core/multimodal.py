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
    """How much a step encodes, and how much of that is kept. An embedding stands for one position
    of a multimodal item. The names are those of vLLM.

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
    """An item to encode before the rows of a step are computed.

    Its content is in the request of the sequence in `slot`, which has a row in the same step. What
    the rows of the encoder store held before is no longer needed.
    """

    slot: int
    item: int  # its place in `Request.items`
    identity: str
    rows: I32  # [length]; rows of the encoder store that its embeddings go to


@dataclass(frozen=True, slots=True, eq=False)
class Embedded:
    """Positions of a step that have an embedding of an item instead of that of their token.

    Position `place[i]` of row `row[i]` of the plan, counted from the row's first, has the one in
    `source[i]` of the encoder store. In the order of the rows, and of their positions.
    """

    row: Index  # [embedded]
    place: I32  # [embedded]
    source: I32  # [embedded]

    def __len__(self) -> int:
        return len(self.row)


NOTHING_EMBEDDED = Embedded(NO_INDEX, NO_I32, NO_I32)


@dataclass(frozen=True, slots=True)
class ItemArray:
    """An array as plain values, so that every message format can carry it."""

    name: str
    dtype: str  # numpy's name of it
    shape: tuple[int, ...]
    cells: bytes


@dataclass(frozen=True, slots=True)
class ItemContent:
    """What the encoder of a model computes an item from, under the names of its preprocessor.

    ```py
    content = ItemContent.of("image", {"pixel_values": pixels})
    content["pixel_values"]  # read-only, without a copy
    ```
    """

    modality: str
    arrays: tuple[ItemArray, ...]

    @staticmethod
    def of(modality: str, arrays: Mapping[str, npt.NDArray[Any]]) -> "ItemContent":
        kept = (
            ItemArray(name, array.dtype.name, array.shape, array.tobytes())
            for name, array in arrays.items()
        )
        return ItemContent(modality, tuple(kept))

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        array = self._named(name)
        return np.frombuffer(array.cells, array.dtype).reshape(array.shape)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._named(name).shape

    def without_cells(self) -> "ItemContent":
        """The shapes alone, for what does not encode it."""
        return ItemContent(self.modality, tuple(replace(one, cells=b"") for one in self.arrays))

    def _named(self, name: str) -> ItemArray:
        for array in self.arrays:
            if array.name == name:
                return array
        raise KeyError(f"this {self.modality} has no array {name!r}")


@dataclass(frozen=True, slots=True)
class Item:
    """A multimodal item inside a prompt: positions whose embeddings an encoder computes.

    Its identity names its content, its size included: items of one identity have the same
    embeddings, one for each position. Tokens that stand between embeddings, such as markers of
    rows, belong to no item; content that has some inside is several items.

    The scheduler never reads `content`, and recordings do not keep it.
    """

    identity: str
    offset: int  # first position it covers
    length: int
    content: ItemContent | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        kinds = type(self.identity), type(self.offset), type(self.length)
        if kinds != (str, int, int) or self.offset < 0 or self.length < 1:
            raise RequestError(f"{self!r} is no item with a name, a place and a length")

    @property
    def end(self) -> int:
        """The position behind it."""
        return self.offset + self.length

    def without_content(self) -> "Item":
        return Item(self.identity, self.offset, self.length)

    def without_cells(self) -> "Item":
        content = None if self.content is None else self.content.without_cells()
        return replace(self, content=content)


def wrong_items(items: tuple[Item, ...], prompt: int) -> str:
    """What is wrong with the items of a prompt of `prompt` tokens; empty if nothing is."""
    lengths: dict[str, int] = {}
    end = 0
    for item in items:
        if not isinstance(item, Item):  # pyright: ignore[reportUnnecessaryIsInstance]
            return f"{item!r} is no item"
        if item.end > prompt:
            return f"{item!r} ends after the prompt of {prompt} tokens"
        if item.offset < end:
            return f"{item!r} begins before position {end}, where the item before it ends"
        if lengths.setdefault(item.identity, item.length) != item.length:
            return f"{item!r} has the identity of an item of another length"
        end = item.end
    return ""


@dataclass(frozen=True, slots=True)
class ImagePrompt:
    """Token ids with room for images, and the images."""

    token_ids: list[int]
    items: tuple[Item, ...]
