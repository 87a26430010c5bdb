"""Open the checkpoint at a path."""

from pathlib import Path

from paceline.core.errors import ConfigError
from paceline.runner.weights.checkpoint import Checkpoint
from paceline.runner.weights.gguf import GGUF
from paceline.runner.weights.safetensors import SafetensorsFolder


def open_checkpoint(path: Path, quantization: str = "auto", text_only: bool = False) -> Checkpoint:
    """Open a GGUF file, whatever its name, or a folder in HF's layout, to be loaded in a format.
    With `text_only`, a model with images is read without them, if it can be."""
    if path.is_dir():
        return SafetensorsFolder(path, quantization, text_only)
    if path.is_file():
        return GGUF(path, quantization)
    raise ConfigError(f"{path} is neither a model folder nor a GGUF file")
