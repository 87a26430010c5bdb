"""Loads what reads the images of prompts, without the weights."""

from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from paceline.core.config import LoadConfig
from paceline.core.errors import ConfigError
from paceline.core.json_file import json_object
from paceline.engine.core.ports import PromptImages
from paceline.text.tokenizer import Tokenizer
from paceline.wiring.json_settings import LIMIT, mapping_in


def load_images(path: str, tokenizer: Tokenizer, load: LoadConfig) -> PromptImages | None:
    """The reader of images of a model in a folder; None if the model reads none."""
    folder = Path(path).expanduser()
    limit = images_per_prompt(load.limit_mm_per_prompt)
    file = folder / "config.json"
    if not file.is_file() or "vision_config" not in json_object(file):
        return None
    if find_spec("PIL") is None:
        raise ConfigError(
            "this model reads images, for which Pillow is missing; install paceline[images]"
        )
    reader = import_module("paceline.images.reader")  # only a model with images needs Pillow
    limits = reader.ImageLimits(limit, load.max_image_pixels)
    return reader.ImageReader.load(folder, partial(tokenizer.encode, special=False), limits)


def images_per_prompt(given: str) -> int:
    """Most images of a prompt, of a setting in vLLM's form: {"image": 4}."""
    found = mapping_in(LIMIT, given, '{"image": 4}')
    most = found.pop("image", 0)
    if found or type(most) is not int or most < 0:
        raise ConfigError(f"{LIMIT} is {given!r:.200}; it maps 'image' to the most of a prompt")
    return most
