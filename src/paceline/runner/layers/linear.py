"""Linears."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from paceline.runner.weights.matrix import Matrix


class Linear(Protocol):
    """A linear with fixed weights."""

    def __call__(self, x: Tensor) -> Tensor:
        """Map [n, inputs] to a new [n, outputs]."""
        ...

    def add_to(self, total: Tensor, x: Tensor) -> None:
        """total += self(x), in place."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class LinearParts:
    """The parts of which a linear is built.

    name     of its tensors, for messages and caches
    read     reads the weights [outputs, inputs]; not called if a cache has them
    bias     [outputs] in float32
    factor   [inputs] in float32, of the norm before it, if it is folded into the linear
    dtype    of its inputs and outputs
    """

    name: str
    read: Callable[[], Matrix]
    bias: Tensor | None
    factor: Tensor | None
    dtype: torch.dtype


class DenseLinear:
    """Weights in the type of the activations, transposed.

    On a CPU, [inputs, outputs] halves the time of the original layout with 8 to 32 rows, and is not
    slower with one row or hundreds.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        dtype: torch.dtype,
        factor: Tensor | None = None,
    ) -> None:
        whole = weight if factor is None else weight * factor
        self.weight = whole.to(dtype).t().contiguous()
        self.bias = None if bias is None else bias.to(dtype)

    @staticmethod
    def of(parts: LinearParts) -> "DenseLinear":
        return DenseLinear(parts.read().dense(), parts.bias, parts.dtype, parts.factor)

    def __call__(self, x: Tensor) -> Tensor:
        if self.bias is None:
            return torch.mm(x, self.weight)
        return torch.addmm(self.bias, x, self.weight)

    def add_to(self, total: Tensor, x: Tensor) -> None:
        total.addmm_(x, self.weight)
        if self.bias is not None:
            total.add_(self.bias)
