"""Sizes of models without their weights: those that come with the package, by name."""

import json
from importlib.resources import files
from pathlib import Path

from paceline.core.errors import ConfigError
from paceline.core.json_file import json_object
from paceline.runner.models.config import ModelConfig


def named_shapes() -> list[str]:
    """Names of the model shapes that come with the package."""
    folder = files("paceline.runner.models") / "shapes"
    return sorted(file.name.removesuffix(".json") for file in folder.iterdir())


def config_in(name: str) -> ModelConfig:
    """Of a shape by its name, or of a folder that has a config.json."""
    folder = Path(name).expanduser()
    if name in named_shapes():
        text = (files("paceline.runner.models") / "shapes" / f"{name}.json").read_text()
        return ModelConfig.of_hf(json.loads(text))
    if (folder / "config.json").is_file():
        return ModelConfig.of_hf(json_object(folder / "config.json"))
    known = ", ".join(named_shapes())
    raise ConfigError(
        f"unknown model shape {name!r}: choose {known}, or a folder with a config.json"
    )
