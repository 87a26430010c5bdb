"""Model configurations that come with the package, without weights."""

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
    """Read the configuration of a named shape, or of a folder with a config.json."""
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
