"""Checkpoints of EAGLE-3 heads, as published by the authors."""

from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from paceline.core.errors import ConfigError
from paceline.core.system.files import json_object
from paceline.runner.draft_heads.eagle3 import Eagle3Config, describe_head
from paceline.runner.draft_heads.head import HeadWeights
from paceline.runner.models.config import ModelConfig
from paceline.runner.models.tensor_spec import Shape
from paceline.runner.weights.checkpoint import compare
from paceline.runner.weights.safetensors import files_in

EMBEDDING, TO_TARGET, OF_TARGET = "model.embed_tokens.weight", "d2t", "t2d"
BIN = "pytorch_model.bin"


class Eagle3Folder(HeadWeights):
    """The checkpoint of a head: config.json, and tensors in .safetensors files or one .bin file.

    Tensors get the names of a decoder with one layer. Two may be missing: the embedding, if it is
    the model's, and `d2t`, if the head can draft every id.
    """

    is_quantized = False

    def __init__(self, folder: Path) -> None:
        self.head = Eagle3Config.of_hf(json_object(folder / "config.json"))
        self.files = [folder / BIN] if (folder / BIN).exists() else files_in(folder)
        self._tensors: dict[str, Tensor] = {}
        for path in self.files:
            self._tensors |= {plain_name(name): one for name, one in tensors_in(path).items()}
        self.shapes: dict[str, Shape] = {
            name: tuple(one.shape) for name, one in self._tensors.items()
        }
        self._check()

    @property
    def config(self) -> ModelConfig:
        return self.head.decoder

    @property
    def embedding(self) -> str | None:
        return EMBEDDING if EMBEDDING in self.shapes else None

    def read(self, name: str) -> Tensor:
        return self._tensors[name]

    def target_ids(self) -> Tensor:
        ids = torch.arange(self.head.draft_vocab)
        if TO_TARGET in self._tensors:
            ids += self._tensors[TO_TARGET]
        if not bool(((ids >= 0) & (ids < self.config.vocab)).all()):
            raise ConfigError(
                f"d2t names token ids outside of the {self.config.vocab} of the model"
            )
        return ids

    def _check(self) -> None:
        spec = describe_head(self.head)
        tensors = (*spec.decoder.tensors, *spec.fuse.weights)
        needed = {tensor.name: tensor.shape for tensor in tensors}
        if self.embedding is None:
            del needed[EMBEDDING]
        if self.head.draft_vocab < self.config.vocab:
            needed[TO_TARGET] = (self.head.draft_vocab,)
        known = {name: shape for name, shape in self.shapes.items() if name != OF_TARGET}
        if self.head.draft_vocab == self.config.vocab:
            known.pop(TO_TARGET, None)
        compare(needed, known)


def plain_name(name: str) -> str:
    """The name of a head's tensor in a decoder with one layer."""
    name = name.removeprefix("model.").replace("midlayer.", "layers.0.")
    is_inner = name.startswith(("layers.", "embed_tokens.", "norm."))
    return f"model.{name}" if is_inner else name


def tensors_in(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, mapped to memory."""
    try:
        if path.name == BIN:
            return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        file: Any = safe_open(path, framework="pt")
    except (OSError, SafetensorError, RuntimeError, UnpicklingError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
