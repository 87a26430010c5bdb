"""Finds a model by name: its weights, wherever they come from, and the text that goes with them."""

from dataclasses import dataclass
from pathlib import Path

from paceline.core.config import LoadFormat
from paceline.core.errors import ConfigError
from paceline.hub.progress import Progress
from paceline.runner.models.shape import config_in, named_shapes
from paceline.runner.weights.checkpoint import Checkpoint
from paceline.runner.weights.dummy import Dummy
from paceline.runner.weights.files import open_checkpoint
from paceline.runner.weights.gguf import GGUF
from paceline.runner.weights.safetensors import SafetensorsFolder
from paceline.text.tokenizer import Tokenizer
from paceline.wiring.download import download
from paceline.wiring.tokenizer import load_tokenizer


@dataclass(frozen=True, slots=True, eq=False)
class ModelSource:
    """A model at rest, and its tokenizer."""

    checkpoint: Checkpoint
    tokenizer: Tokenizer


def find_model(name: str, form: LoadFormat, device: str, progress: Progress) -> ModelSource:
    """By a name that can be pulled, by path, or by the name of a shape, with random weights."""
    if form == "dummy":
        return ModelSource(Dummy(config_in(name), device=device), load_tokenizer(name, form))
    if name in named_shapes():
        raise ConfigError(f"{name} is a shape without weights; add load_format 'dummy' to run it")
    path = Path(download(name, progress))
    checkpoint = open_checkpoint(path)
    kinds = {"gguf": GGUF, "safetensors": SafetensorsFolder}
    if form != "auto" and not isinstance(checkpoint, kinds[form]):
        raise ConfigError(f"load_format is {form!r}, and {path} is something else")
    return ModelSource(checkpoint, load_tokenizer(str(path), form))
