"""The weights of a linear in memory."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import TypeVar

import torch
from torch import Tensor

from paceline.runner.weights.codes import Codes

M = TypeVar("M", bound="Matrix")


@dataclass(frozen=True, slots=True, eq=False)
class Matrix(ABC):
    """The weights of a linear, [outputs, inputs], in some format.

    Subclasses are frozen dataclasses. The first dimension of their tensors is outputs, or blocks of
    them; weights of several experts have the experts before it.
    """

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs."""

    @property
    def form(self) -> str:
        """The format, for messages."""
        return type(self).__name__

    @abstractmethod
    def dense(self) -> Tensor:
        """The decoded weights, [outputs, inputs] in float32."""

    def folded(self, factor: Tensor | None, dtype: torch.dtype) -> tuple["Matrix", Tensor | None]:
        """Fold a factor of the inputs [inputs] into the weights. Returns the weights, and the
        factor that the kernel must apply if the format cannot hold it."""
        return self, factor

    def scaled(self, factor: float) -> "Matrix":
        """All weights times a factor."""
        return PlainMatrix(self.dense() * factor)

    def select(self: M, outputs: Tensor) -> "M | PlainMatrix":
        """The outputs `rows`, in this order."""
        return PlainMatrix(self.dense()[outputs])

    def codes(self) -> Codes | None:
        """The integer codes of the weights; None: integer kernels must round the weights."""
        return None

    @property
    def joins(self) -> bool:
        """Can outputs of other matrices be appended?"""
        return True

    def is_like(self, other: "Matrix") -> bool:
        """Can one matrix of this format have the outputs of both?"""
        return self.form == other.form

    def as_like(self, other: "Matrix") -> "Matrix":
        """The same weights in the finer one of both formats, if these have a common one."""
        return self

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        found = (getattr(self, one.name) for one in fields(self))
        return tuple(one for one in found if isinstance(one, Tensor))

    def with_tensors(self: M, tensors: Iterable[Tensor]) -> M:
        """A matrix of the same format with other tensors."""
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

    def scaled(self, factor: float) -> "PlainMatrix":
        return PlainMatrix(self.weight * factor)

    def select(self, outputs: Tensor) -> "PlainMatrix":
        return PlainMatrix(self.weight[outputs])


def joined(matrices: Sequence[Matrix]) -> Matrix:
    """Join linears of the same input; those without a common format are decoded."""
    first, *others = matrices
    if not others:
        return first
    for other in others:
        first = first.as_like(other)
    matrices = [one.as_like(first) for one in matrices]
    is_one_form = all(first.is_like(one) for one in matrices)
    if not is_one_form or not all(one.joins for one in matrices[:-1]):
        return PlainMatrix(torch.cat([one.dense() for one in matrices]))
    return first.with_tensors(map(torch.cat, zip(*(one.tensors for one in matrices), strict=True)))


def stacked(count: int, matrices: Iterator[Matrix]) -> Matrix:
    """Stack the weights of experts, which are read one at a time."""
    first = next(matrices)
    whole = [tensor.new_empty((count, *tensor.shape)) for tensor in first.tensors]
    for expert, matrix in enumerate(chain((first,), matrices)):
        for there, tensor in zip(whole, matrix.tensors, strict=True):
            there[expert] = tensor
    return first.with_tensors(whole)
