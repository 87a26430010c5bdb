"""A model that takes no time to load, and patience."""

import json
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep
from typing import Any, TypeVar

from safetensors.torch import save_file

from paceline.runner.models.config import ModelConfig
from paceline.runner.weights.dummy import Dummy
from paceline.runner.weights.safetensors import SINGLE
from paceline.wiring.model_files import bytes_as_tokens

PATIENCE_S = 120.0
DESCRIBED = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 400,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
T = TypeVar("T")


def dummy_model(folder: Path) -> Path:
    """The shape of a model, for `load_format` dummy; tokens are bytes."""
    (folder / "config.json").write_text(json.dumps(DESCRIBED))
    return folder


def until(reached: Callable[[], T]) -> T:
    """Wait for something that is not false."""
    give_up = monotonic() + PATIENCE_S
    while monotonic() < give_up:
        if found := reached():
            return found
        sleep(0.03)
    raise AssertionError("it was not reached in time")


def real_model(folder: Path, seed: int = 0, **changes: Any) -> Path:
    """A model with random weights in files; tokens are bytes."""
    described = {**DESCRIBED, **changes}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(described))
    words = bytes_as_tokens(described["vocab_size"], "")
    words.backend.save(str(folder / "tokenizer.json"))
    source = Dummy(ModelConfig.of_hf(described), seed)
    tensors = {name: source.read(name).contiguous() for name in source.shapes}
    save_file(tensors, folder / SINGLE)
    return folder
