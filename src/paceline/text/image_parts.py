"""Images among the parts of messages, in the forms in which clients send them."""

from collections.abc import Iterable, Mapping
from typing import Any, cast

from paceline.core.errors import RequestError

# Types of parts that are images.
KINDS = ("image", "image_url", "input_image", "image_pil")
SHOWN: Mapping[str, str] = {"type": "image"}  # an image, as chat templates expect it


def is_image(part: object) -> bool:
    return isinstance(part, Mapping) and cast("Mapping[str, Any]", part).get("type") in KINDS


def source_of(part: Mapping[str, Any]) -> Any:
    """What an image is read from: a URL, the bytes of a file, or an object of the caller."""
    for key in ("image_url", "image", "image_pil", "url"):
        if (found := part.get(key)) is not None:
            break
    else:
        raise RequestError(f"a message part of type {part['type']!r} has no image")
    if isinstance(found, Mapping):
        found = cast("Mapping[str, Any]", found).get("url")
        if not isinstance(found, str):
            raise RequestError("image_url of a message part has no url, a text")
    return found


def images_of(messages: Iterable[Mapping[str, Any]]) -> list[Any]:
    """What the images of a conversation are read from, in order."""
    found: list[Any] = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, list | tuple):
            parts = cast("Iterable[Any]", content)
            found += (source_of(part) for part in parts if is_image(part))
    return found
