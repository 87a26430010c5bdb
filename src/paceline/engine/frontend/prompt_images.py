"""Reads the images of a prompt, if its model and its settings allow it."""

from collections.abc import Sequence
from typing import Any

from paceline.core.errors import RequestError
from paceline.core.image_prompt import ImagePrompt
from paceline.engine.api import GenerationRequest
from paceline.engine.core.ports import PromptImages


def read_images(
    reader: PromptImages | None,
    generation: GenerationRequest,
    ids: Sequence[int],
    images: Sequence[Any],
) -> ImagePrompt:
    """A prompt with its images in their places. RequestError if it cannot have any."""
    if reader is None:
        raise RequestError("this model reads no images; send text only")
    if generation.most_prompt_tokens is not None:
        raise RequestError(
            "a prompt with images cannot be truncated; remove truncate_prompt_tokens"
        )
    return reader.read(ids, images)
