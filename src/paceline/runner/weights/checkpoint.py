"""The interface of checkpoints, and the check that one matches its configuration."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from torch import Tensor

from paceline.core.errors import ConfigError
from paceline.runner.models.config import ModelConfig
from paceline.runner.models.manifest import manifest
from paceline.runner.models.tensor_spec import Shape

NAMED = 5  # tensors listed in an error message


class Checkpoint(Protocol):
    """A model in files. Names and layouts of its tensors are those of HF."""

    @property
    def config(self) -> ModelConfig: ...

    @property
    def files(self) -> Sequence[Path]:
        """The files that weights are read from; none if there are no files."""
        ...

    @property
    def is_quantized(self) -> bool:
        """Whether matrices are stored in fewer than 16 bits."""
        ...

    @property
    def shapes(self) -> Mapping[str, Shape]:
        """Shapes of all tensors, without reading them."""
        ...

    def read(self, name: str) -> Tensor:
        """Read a tensor, in any floating-point type."""
        ...


def verify(checkpoint: Checkpoint) -> None:
    """Raise a ConfigError if tensors are missing, unknown or of the wrong shape."""
    compare(manifest(checkpoint.config), checkpoint.shapes)


def compare(expected: Mapping[str, Shape], found: Mapping[str, Shape]) -> None:
    """Raise a ConfigError unless exactly the expected tensors were found, by name."""
    problems = {
        "missing": [name for name in expected if name not in found],
        "unknown": [name for name in found if name not in expected],
        "wrong shape": [
            f"{name} {list(found[name])} instead of {list(shape)}"
            for name, shape in expected.items()
            if name in found and tuple(found[name]) != shape
        ],
    }
    reasons = [f"{kind}: {_some(names)}" for kind, names in problems.items() if names]
    if reasons:
        raise ConfigError(f"the checkpoint does not match its configuration; {'; '.join(reasons)}")


def _some(names: list[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
