"""A multimodal item inside a prompt, such as an image."""

from dataclasses import dataclass

from paceline.core.errors import RequestError


@dataclass(frozen=True, slots=True)
class Item:
    """A multimodal item inside a prompt. Its identity names its content, its size included."""

    identity: str
    offset: int  # first position it covers
    length: int

    def __post_init__(self) -> None:
        kinds = type(self.identity), type(self.offset), type(self.length)
        if kinds != (str, int, int) or self.offset < 0 or self.length < 1:
            raise RequestError(f"{self!r} is no item with a name, a place and a length")


def wrong_items(items: tuple[Item, ...], prompt: int) -> str:
    """What is wrong with the items of a prompt of `prompt` tokens; empty if nothing is."""
    for item in items:
        if not isinstance(item, Item):  # pyright: ignore[reportUnnecessaryIsInstance]
            return f"{item!r} is no item"
        if item.offset + item.length > prompt:
            return f"{item!r} ends after the prompt of {prompt} tokens"
    return ""
