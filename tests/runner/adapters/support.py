"""Adapters in PEFT's format, written by hand, and models with an adapter in their weights."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from paceline.runner.adapters.targets import PeftConfig
from paceline.runner.models.architecture import parts_of
from paceline.runner.models.config import ModelConfig
from paceline.runner.models.describe import describe
from paceline.runner.models.linear_spec import LinearSpec
from paceline.runner.weights.checkpoint import Checkpoint

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
PREFIX = "base_model.model."


def modules_of(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The shapes of the weights of all products in layers, by module. Those of keys that are values
    too are not adapted."""
    return {
        weight.name.removesuffix(".weight"): weight.shape
        for linear in parts_of(describe(config).layers, LinearSpec)
        for weight in linear.weights
        if linear.weights.count(weight) == 1
    }


def write_config(folder: Path, **fields: Any) -> PeftConfig:
    folder.mkdir(parents=True, exist_ok=True)
    given: dict[str, Any] = {
        "peft_type": "LORA",
        "r": 4,
        "lora_alpha": 8,
        "bias": "none",
        "target_modules": ALL,
        "base_model_name_or_path": "tiny",
        **fields,
    }
    (folder / "adapter_config.json").write_text(json.dumps(given))
    return PeftConfig.read(folder)


UNADAPTED = re.compile(r"\.experts\.|\.shared_|\.(gate|router)(\.|$)|\.moe_statics\.")


def write_adapter(folder: Path, config: ModelConfig, seed: int = 0, **fields: Any) -> Path:
    """An adapter that changes the model so much that its tokens are others."""
    own = write_config(folder, **fields)
    tensors: dict[str, Tensor] = {}
    generator = torch.Generator().manual_seed(seed)
    for module, (outputs, inputs) in modules_of(config).items():
        if UNADAPTED.search(module) or not own.adapts(module):
            continue
        rank = own.rank_of(module)
        a = torch.randn(rank, inputs, generator=generator) * inputs**-0.5
        b = torch.randn(outputs, rank, generator=generator) * 0.5
        tensors[f"{PREFIX}{module}.lora_A.weight"] = a
        tensors[f"{PREFIX}{module}.lora_B.weight"] = b
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


class Merged:
    """A checkpoint with adapters added to its weights."""

    files: Sequence[Path] = ()
    is_quantized = False

    def __init__(self, checkpoint: Checkpoint, folder: Path) -> None:
        from safetensors.torch import load_file

        self._checkpoint, self._own = checkpoint, PeftConfig.read(folder)
        self._tensors = load_file(folder / "adapter_model.safetensors")
        self.config, self.shapes = checkpoint.config, checkpoint.shapes

    def read(self, name: str) -> Tensor:
        weight = self._checkpoint.read(name)
        module = name.removesuffix(".weight")
        a = self._tensors.get(f"{PREFIX}{module}.lora_A.weight")
        if a is None:
            return weight
        b = self._tensors[f"{PREFIX}{module}.lora_B.weight"]
        return weight + self._own.scale_of(module) * (b @ a)
