"""How the weights of linears are stored: what a format reads, and how one is found by name."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from importlib import import_module
from itertools import chain
from pkgutil import iter_modules
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from paceline.core import plugins
from paceline.core.errors import ConfigError
from paceline.runner.models.tensor_spec import TensorSpec

PACKAGE = "paceline.runner.formats"  # one file per format, found by its name
Read = Callable[[TensorSpec], Tensor]  # a tensor as it is stored, of this rank, on the device
M = TypeVar("M", bound="Matrix")


@dataclass(frozen=True, slots=True, eq=False)
class Matrix(ABC):
    """The weights of a linear, [outputs, inputs], in the form of one format.

    A subclass is a frozen dataclass. Its tensors have the outputs, or blocks of them, along the
    first dimension; in weights of several experts, the experts come before that.
    """

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs."""

    @property
    def form(self) -> str:
        """What the numbers are, for messages."""
        return type(self).__name__

    @abstractmethod
    def dense(self) -> Tensor:
        """The numbers that these weights stand for, [outputs, inputs] in float32."""

    def folded(self, factor: Tensor | None, dtype: torch.dtype) -> tuple["Matrix", Tensor | None]:
        """The weights as they are kept, with the factor of the inputs [inputs] in them, and the
        factor that a kernel must apply instead, if the format cannot hold it."""
        return self, factor

    def select(self: M, outputs: Tensor) -> "M | PlainMatrix":
        """Some outputs, in this order."""
        return PlainMatrix(self.dense()[outputs])

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        found = (getattr(self, one.name) for one in fields(self))
        return tuple(one for one in found if isinstance(one, Tensor))

    def with_tensors(self: M, tensors: Iterable[Tensor]) -> M:
        """The same form with other tensors."""
        names = (one.name for one in fields(self) if isinstance(getattr(self, one.name), Tensor))
        return replace(self, **dict(zip(names, tensors, strict=True)))


@dataclass(frozen=True, slots=True, eq=False)
class PlainMatrix(Matrix):
    """Floating-point numbers."""

    weight: Tensor  # [outputs, inputs]

    @property
    def form(self) -> str:
        return str(self.weight.dtype).removeprefix("torch.")

    @property
    def shape(self) -> tuple[int, int]:
        return self.weight.shape[-2], self.weight.shape[-1]

    def dense(self) -> Tensor:
        return self.weight.float()

    def folded(self, factor: Tensor | None, dtype: torch.dtype) -> tuple[Matrix, None]:
        whole = self.weight if factor is None else self.weight * factor
        return PlainMatrix(whole.to(dtype)), None

    def select(self, outputs: Tensor) -> "PlainMatrix":
        return PlainMatrix(self.weight[outputs])


def joined(matrices: Sequence[Matrix]) -> Matrix:
    """Linears of the same input as one; of several forms, all are decoded."""
    first = matrices[0]
    if len(matrices) == 1:
        return first
    if any(type(one) is not type(first) for one in matrices):
        return PlainMatrix(torch.cat([one.dense() for one in matrices]))
    return first.with_tensors(map(torch.cat, zip(*(one.tensors for one in matrices), strict=True)))


def stacked(count: int, matrices: Iterator[Matrix]) -> Matrix:
    """The weights of several experts, one of which is read at a time."""
    first = next(matrices)
    whole = [tensor.new_empty((count, *tensor.shape)) for tensor in first.tensors]
    for expert, matrix in enumerate(chain((first,), matrices)):
        for there, tensor in zip(whole, matrix.tensors, strict=True):
            there[expert] = tensor
    return first.with_tensors(whole)


class WeightFormat(ABC):
    """How a checkpoint stores the weights of a linear."""

    name: ClassVar[str]

    def stored(self, weight: TensorSpec) -> tuple[TensorSpec, ...]:
        """The tensors that a checkpoint has for the weights of a linear, or for a part of them."""
        return (weight,)

    @abstractmethod
    def read(self, weight: TensorSpec, read: Read) -> Matrix:
        """Read and check them. ConfigError names a tensor with values that are not possible."""

    @classmethod
    def of_config(cls, config: Mapping[str, Any]) -> "Quantization":
        """Which linears have which format, by the `quantization_config` of a checkpoint.
        ConfigError names what is not known."""
        raise ConfigError(f"checkpoints in {cls.name!r} cannot be read")

    def quantize(self, weight: Tensor) -> Matrix:
        """Weights of a plain checkpoint, [outputs, inputs], in this format."""
        raise ConfigError(f"a plain checkpoint cannot be loaded as {self.name!r}")


@dataclass(frozen=True, slots=True)
class Plain(WeightFormat):
    """Floating-point numbers in one tensor."""

    name: ClassVar[str] = "plain"

    def read(self, weight: TensorSpec, read: Read) -> Matrix:
        return PlainMatrix(read(weight).float())


PLAIN = Plain()


@dataclass(frozen=True, slots=True)
class QuantizedOnLoad(WeightFormat):
    """Plain weights of a checkpoint, of which each linear is quantized when it has been read."""

    name: ClassVar[str] = "on load"
    format: WeightFormat

    def read(self, weight: TensorSpec, read: Read) -> Matrix:
        return self.format.quantize(read(weight).float())


@dataclass(frozen=True, slots=True)
class Quantization:
    """The format of each linear of a model, by the name of its module.

    format      of all linears of layers, if no rule says otherwise
    rules       patterns of whole names, and the format of the first that matches
    """

    format: WeightFormat = PLAIN
    rules: tuple[tuple[str, WeightFormat], ...] = ()

    def format_of(self, module: str) -> WeightFormat:
        found = (one for pattern, one in self.rules if re.fullmatch(pattern, module))
        return next(found, self.format)


UNQUANTIZED = Quantization()


def known() -> list[str]:
    """The names of all formats that checkpoints may have."""
    return [one.name for one in iter_modules(import_module(PACKAGE).__path__)]


def load(name: str) -> type[WeightFormat]:
    """Load a format by its module name in `formats`, or by the dotted path of a class."""
    found: Any = plugins.load("weight format", name, PACKAGE, WeightFormat)
    return found
