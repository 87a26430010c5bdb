"""A prompt in which images have their places."""

from dataclasses import dataclass

from paceline.core.item import Item


@dataclass(frozen=True, slots=True)
class ImagePrompt:
    """Token ids with room for images, and the images."""

    token_ids: list[int]
    items: tuple[Item, ...]
