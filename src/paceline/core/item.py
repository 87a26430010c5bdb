"""A multimodal item inside a prompt, such as an image, and what it is computed from."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.core.errors import RequestError


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
