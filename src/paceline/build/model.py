"""Finds a model by name: its weights, wherever they come from, and the text that goes with them."""

from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from paceline.core.config import LoadFormat
from paceline.core.errors import ConfigError
from paceline.hub.progress import Progress
from paceline.hub.pull import pull
from paceline.runner.weights.checkpoint import Checkpoint
from paceline.runner.weights.dummy import Dummy, config_in, named_shapes
from paceline.runner.weights.files import open_checkpoint
from paceline.runner.weights.gguf import GGUF
from paceline.runner.weights.safetensors import SafetensorsFolder
from paceline.text.tokenizer import Tokenizer
from paceline.text.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """A model at rest, and its tokenizer."""

    checkpoint: Checkpoint
    tokenizer: Tokenizer


def find_model(name: str, form: LoadFormat, device: str, progress: Progress) -> Source:
    """By a name that can be pulled, by path, or by the name of a shape, with random weights."""
    if form == "dummy":
        return dummy(name, device)
    if name in named_shapes():
        raise ConfigError(f"{name} is a shape without weights; add load_format 'dummy' to run it")
    path = Path(pull(name, progress=progress))
    checkpoint = open_checkpoint(path)
    kinds = {"gguf": GGUF, "safetensors": SafetensorsFolder}
    if form != "auto" and not isinstance(checkpoint, kinds[form]):
        raise ConfigError(f"load_format is {form!r}, and {path} is something else")
    return Source(checkpoint, Tokenizer.load(path))


def dummy(name: str, device: str) -> Source:
    """Random weights in a shape that comes with the package, or that a folder describes."""
    folder = Path(name).expanduser()
    has_words = (folder / "tokenizer.json").is_file()
    config = config_in(name)
    tokenizer = Tokenizer.load(folder) if has_words else Tokenizer(bytes_as_tokens(config.vocab))
    return Source(Dummy(config, device=device), tokenizer)


def bytes_as_tokens(size: int) -> Vocabulary:
    """A token for each byte, for models that say nothing anyway. The others stand for their
    number, and no text has them."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())[:size]
    words = [*alphabet, *(f"<{id}>" for id in range(len(alphabet), size))]
    backend = Backend(models.BPE({word: id for id, word in enumerate(words)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return Vocabulary(backend, bos=None, eos=(), chat_template=None)
