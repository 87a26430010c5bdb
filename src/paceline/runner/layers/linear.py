"""Linears with weights."""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor


class Linear(Protocol):
    """A matrix that is fixed when it is built."""

    def __call__(self, x: Tensor) -> Tensor:
        """[n, inputs] to a new [n, outputs]."""
        ...

    def add_to(self, total: Tensor, x: Tensor) -> None:
        """total += self(x), in place."""
        ...


# Weight [outputs, inputs] and bias [outputs] in float32, the type of what goes in and out, and a
# factor of the inputs [inputs], which a norm that precedes leaves to the linear.
LinearKind = Callable[[Tensor, Tensor | None, torch.dtype, Tensor | None], Linear]


class DenseLinear:
    """Weights in the type of the activations, transposed.

    On a CPU they are stored as [inputs, outputs]: with 8 to 32 rows this takes half the time of the
    original layout, and with one row or hundreds it is no slower.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        dtype: torch.dtype,
        factor: Tensor | None = None,
    ) -> None:
        whole = weight if factor is None else weight * factor
        turned = whole.to(dtype).t()
        self.weight = turned.contiguous() if weight.device.type == "cpu" else turned
        self.bias = None if bias is None else bias.to(dtype)

    def __call__(self, x: Tensor) -> Tensor:
        if self.bias is None:
            return torch.mm(x, self.weight)
        return torch.addmm(self.bias, x, self.weight)

    def add_to(self, total: Tensor, x: Tensor) -> None:
        total.addmm_(x, self.weight)
        if self.bias is not None:
            total.add_(self.bias)
