"""The interface of checkpoints, and a check against the model's description."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from paceline.core.errors import ConfigError, some
from paceline.runner.models.config import ModelConfig
from paceline.runner.models.describe import manifest
from paceline.runner.models.tensor_spec import Cut, Shape
from paceline.runner.weights.matrix import Matrix

NAMED = 5  # tensors listed in an error message


class Checkpoint(Protocol):
    """The tensors of a model, with the names and layouts of HF."""

    @property
    def config(self) -> ModelConfig: ...

    @property
    def files(self) -> Sequence[Path]:
        """The files of the weights; empty if there are none."""
        ...

    @property
    def is_quantized(self) -> bool:
        """Are matrices stored in fewer than 16 bits?"""
        ...

    @property
    def shapes(self) -> Mapping[str, Shape]:
        """The shapes of all tensors, without reading them."""
        ...

    def read(self, name: str) -> Tensor:
        """Read a tensor, in any floating-point type."""
        ...


@runtime_checkable
class PartReader(Protocol):
    """A checkpoint that can read parts of tensors."""

    def read_part(self, name: str, cut: Cut) -> Tensor: ...


@runtime_checkable
class MatrixReader(Protocol):
    """A checkpoint that has some weights of linears in a form of its own."""

    def matrix(self, name: str) -> Matrix | None:
        """The weights [outputs, inputs] in their form; None: read numbers instead."""
        ...


def read_part(checkpoint: Checkpoint, name: str, cut: Cut) -> Tensor:
    """Read a part of a tensor, or slice the whole if the checkpoint cannot read parts."""
    if isinstance(checkpoint, PartReader):
        return checkpoint.read_part(name, cut)
    return part_of(checkpoint.read(name), cut)


def part_of(tensor: Tensor, cut: Cut) -> Tensor:
    """A copy of a part, so that the whole can be freed."""
    runs = [tensor.narrow(cut.dim, first, end - first) for first, end in cut.runs]
    return torch.cat(runs, dim=cut.dim)


def verify(checkpoint: Checkpoint) -> None:
    """ConfigError if tensors are missing, unknown or of the wrong shape."""
    compare(manifest(checkpoint.config), checkpoint.shapes)


def compare(expected: Mapping[str, Shape], found: Mapping[str, Shape]) -> None:
    """ConfigError unless exactly the expected tensors were found."""
    problems = {
        "missing": [name for name in expected if name not in found],
        "unknown": [name for name in found if name not in expected],
        "wrong shape": [
            f"{name} {list(found[name])} instead of {list(shape)}"
            for name, shape in expected.items()
            if name in found and tuple(found[name]) != shape
        ],
    }
    reasons = [f"{kind}: {some(names, NAMED)}" for kind, names in problems.items() if names]
    if reasons:
        raise ConfigError(f"the checkpoint does not match its configuration; {'; '.join(reasons)}")
