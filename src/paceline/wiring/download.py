"""Downloads a model; its config.json is checked before its weights are downloaded."""

from pathlib import Path

from paceline.core.json_file import json_object
from paceline.hub.progress import Progress, silent
from paceline.hub.pull import pull
from paceline.runner.encoders.config import encoder_config
from paceline.runner.models.config import ModelConfig


def download(name: str | Path, progress: Progress = silent) -> Path:
    """The `.gguf` file or the folder of a model, by name, path or repository."""
    return pull(name, progress, check=check_config)


def check_config(file: Path) -> None:
    """ConfigError if no backend has the architecture that a config.json describes."""
    if encoder_config(file.parent) is None:
        ModelConfig.of_hf(json_object(file))
