"""A folder in HF's layout: config.json and .safetensors files."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from paceline.core.errors import ConfigError
from paceline.core.multimodal import image_settings
from paceline.core.system.files import json_object
from paceline.runner.models.config import ModelConfig
from paceline.runner.models.describe import describe
from paceline.runner.models.tensor_spec import Cut, Shape, TensorSpec
from paceline.runner.weights.checkpoint import part_of
from paceline.runner.weights.expert_stacks import ExpertStacks
from paceline.runner.weights.weight_format import UNQUANTIZED

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
FLOATS = ("F64", "F32", "F16", "BF16")
MODULES = "modules.json"  # a file of sentence-transformers
DERIVED = ".rotary_emb.inv_freq"  # suffix of derived tensors in old files


class TensorFiles:
    """Tensors in .safetensors files, under the names of a description. Files stay mapped while they
    are used."""

    def __init__(
        self,
        config: ModelConfig,
        files: Sequence[Path],
        described: Sequence[TensorSpec],
        is_read: Callable[[str], bool],
    ) -> None:
        """`is_read` says of a name in the files whether the tensor is read."""
        self.config, self.files = config, files
        self._newer = {alias: tensor.name for tensor in described for alias in tensor.aliases}
        self._types = {tensor.name: tensor.types for tensor in described if tensor.types}
        # A scalar may be stored as a vector of one.
        self._scalars: dict[str, Shape] = {one.name: () for one in described if one.shape == ()}
        self._stacks = ExpertStacks(described)
        self._copies = {name for tensor in described for name in tensor.copies}
        self.shapes: dict[str, Shape] = {}
        self._file: dict[str, tuple[Any, str]] = {}  # by tensor: its file, and its name there
        for path in files:
            self._add(path, is_read)
        self.shapes |= self._stacks.shapes()

    @property
    def is_quantized(self) -> bool:
        return self.config.quantization != UNQUANTIZED

    def _add(self, path: Path, is_read: Callable[[str], bool]) -> None:
        try:
            file: Any = safe_open(path, framework="pt")
        except (OSError, SafetensorError) as error:
            raise ConfigError(f"{path} cannot be read: {error}") from None
        stored: str
        for stored in file.keys():  # noqa: SIM118 - it is no mapping
            name = self._newer.get(stored, stored)
            if not is_read(stored):
                continue
            if name in self._file:
                raise ConfigError(f"{path} repeats tensor {name!r} of another file")
            if not self._is_copy(name):
                self._file[name] = file, stored
                self._add_tensor(name, path)

    def _add_tensor(self, name: str, path: Path) -> None:
        file, stored = self._file[name]
        part = file.get_slice(stored)
        is_stack = self._stacks.takes(name)
        known = (self._stacks.types if is_stack else self._types).get(name, FLOATS)
        if (kind := part.get_dtype()) not in known:
            raise ConfigError(f"{path}: tensor {name!r} has type {kind}, which is not supported")
        if is_stack:
            self._stacks.add(name, file)
        else:
            shape = tuple(part.get_shape())
            self.shapes[name] = self._scalars.get(name, shape) if shape == (1,) else shape

    def _is_copy(self, name: str) -> bool:
        """Is a tensor redundant? Some files repeat a tied embedding as the head."""
        return name.endswith(DERIVED) or name in self._copies

    def read(self, name: str) -> Tensor:
        if name in self._stacks:
            return self._stacks.read(name)
        file, stored = self._file[name]
        return file.get_tensor(stored)

    def read_part(self, name: str, cut: Cut) -> Tensor:
        """Read a part of a tensor. Of a stacked tensor, one expert is read and sliced."""
        if name in self._stacks:
            return part_of(self._stacks.read(name), cut)
        file, stored = self._file[name]
        whole, before = file.get_slice(stored), (slice(None),) * cut.dim
        return torch.cat([whole[*before, first:end] for first, end in cut.runs], dim=cut.dim)


class SafetensorsFolder(TensorFiles):
    """A checkpoint in HF's layout."""

    def __init__(self, folder: Path, quantization: str = "auto", text_only: bool = False) -> None:
        """With `text_only`, a model with images is read without them, if it can be."""
        raw = json_object(folder / "config.json")
        generation = folder / "generation_config.json"
        if generation.exists() and "eos_token_id" in (given := json_object(generation)):
            raw = {**raw, "eos_token_id": given["eos_token_id"]}  # chat models list more
        config = ModelConfig.of_hf(raw, image_settings(folder), quantization, text_only)
        config = config.loaded_as(quantization)
        spec = describe(config)
        super().__init__(
            config,
            files_in(folder),
            spec.tensors,
            lambda name: not name.startswith(config.ignored),
        )
        # An embedding model may lack the head, whatever its config.json says.
        if spec.head.weights[0].name not in self.shapes and (folder / MODULES).is_file():
            self.config = replace(self.config, tied_embedding=True, generates=False)

    def beside(self, part: Any, tensors: Sequence[TensorSpec]) -> TensorFiles:
        """Tensors of the same files for a part that is not in the model; some may be missing."""
        names = {name for one in tensors for name in (one.name, *one.aliases, *stack_of(one))}
        return TensorFiles(self.config, self.files, tensors, names.__contains__)


def stack_of(tensor: TensorSpec) -> tuple[str, ...]:
    return () if tensor.stack is None else (tensor.stack.name,)


def files_in(folder: Path) -> list[Path]:
    """The weight files of the model; the folder may have others."""
    index = folder / INDEX
    if not index.exists():
        return [folder / SINGLE]
    names: Any = json_object(index).get("weight_map")
    is_map = isinstance(names, dict)
    files = set(cast("dict[str, Any]", names).values()) if is_map else set[Any]()
    if not files or not all(isinstance(one, str) for one in files):
        raise ConfigError(f"{index} has no weight_map of file names")
    return [folder / name for name in sorted(files)]
