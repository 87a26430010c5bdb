"""Loads what reads the images of prompts, without the weights."""

import logging
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from paceline.core.config import LoadConfig
from paceline.core.errors import ConfigError, RequestError
from paceline.core.image_prompt import ImagePrompt
from paceline.core.json_file import json_object
from paceline.engine.core.ports import PromptImages
from paceline.runner.models.config_entries import ConfigEntries
from paceline.runner.models.hf_config import architecture
from paceline.text.tokenizer import Tokenizer
from paceline.wiring.json_settings import LIMIT, mapping_in

log = logging.getLogger(__name__)


def load_images(path: str, tokenizer: Tokenizer, load: LoadConfig) -> PromptImages | None:
    """The reader of images of a model in a folder; None if the model reads none."""
    folder = Path(path).expanduser()
    limit = images_per_prompt(load.limit_mm_per_prompt)
    file = folder / "config.json"
    raw = json_object(file) if file.is_file() else {}
    if "vision_config" not in raw:
        return None
    if (model := text_part_of(raw)) is not None:
        return RefusedImages(model)
    if find_spec("PIL") is None:
        raise ConfigError(
            "this model reads images, for which Pillow is missing; install paceline[images]"
        )
    reader = import_module("paceline.images.reader")  # only a model with images needs Pillow
    limits = reader.ImageLimits(limit, load.max_image_pixels)
    return reader.ImageReader.load(folder, partial(tokenizer.encode, special=False), limits)


def text_part_of(raw: dict[str, Any]) -> str | None:
    """The name of a model of which only the text part is computed; None if it is another one."""
    entries = ConfigEntries(raw, "config.json")
    return entries.need("architectures")[0] if architecture(entries).is_text_part else None


def log_images(images: PromptImages | None) -> None:
    """Warn if images of the model are refused."""
    if isinstance(images, RefusedImages):
        log.warning(
            "%s: images of this model are not supported; its text part is loaded", images.model
        )


class RefusedImages:
    """Refuses the images of prompts by the name of the model."""

    largest = 0

    def __init__(self, model: str) -> None:
        self.model = model

    def read(self, token_ids: Sequence[int], images: Sequence[Any]) -> ImagePrompt:
        raise RequestError(
            f"images of {self.model} are not supported, only its text part is loaded; send text "
            "only"
        )


def images_per_prompt(given: str) -> int:
    """Most images of a prompt, of a setting in vLLM's form: {"image": 4}."""
    found = mapping_in(LIMIT, given, '{"image": 4}')
    most = found.pop("image", 0)
    if found or type(most) is not int or most < 0:
        raise ConfigError(f"{LIMIT} is {given!r:.200}; it maps 'image' to the most of a prompt")
    return most
