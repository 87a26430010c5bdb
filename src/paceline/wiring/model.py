"""Finds a model by name: its weights and its tokenizer."""

from dataclasses import dataclass
from pathlib import Path

from paceline.core.config import LoadFormat
from paceline.core.errors import ConfigError
from paceline.hub.catalogue import repository_named
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
    """The weights of a model on disk, its tokenizer, and where they are."""

    checkpoint: Checkpoint
    tokenizer: Tokenizer
    path: str


def find_model(
    name: str, form: LoadFormat, device: str, progress: Progress, chat_template: str = ""
) -> ModelSource:
    """Find a model by a name that can be pulled, by path, or by the name of a shape.

    A shape has random weights.
    """
    checkpoint, path = find_checkpoint(name, form, device, progress)
    return ModelSource(checkpoint, load_tokenizer(path, form, chat_template), path)


def find_checkpoint(
    name: str, form: LoadFormat, device: str, progress: Progress
) -> tuple[Checkpoint, str]:
    """The same without the tokenizer: the weights, and where they are."""
    if form == "dummy":
        return Dummy(config_in(name), device=device), name
    if name in named_shapes() and repository_named(name) is None:
        raise ConfigError(
            f"{name} is a shape without weights; set load_format to 'dummy' for random weights"
        )
    path = Path(download(name, progress))
    checkpoint = open_checkpoint(path)
    kinds = {"gguf": GGUF, "safetensors": SafetensorsFolder}
    if form != "auto" and not isinstance(checkpoint, kinds[form]):
        raise ConfigError(
            f"load_format is {form!r}, but {path} has another format; set load_format to 'auto'"
        )
    return checkpoint, str(path)
