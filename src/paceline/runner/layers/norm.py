"""Root-mean-square norms."""

import torch
from torch import Tensor

from paceline.runner.layers.linear import Linear


class UnscaledNorm:
    """A norm without its factor sqrt(width) * weight.

    The product after a norm has the factor in its weights; elsewhere `Norm` applies it. The floor
    is sqrt(width * eps), the smallest length that a row is divided by.
    """

    def __init__(self, floor: float, device: torch.device | str) -> None:
        self._floor = torch.tensor(floor, device=device)

    def length(self, x: Tensor) -> Tensor:
        """sqrt(width) * sqrt(mean(x * x) + eps) = hypot(|x|, floor), in float32."""
        size = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        return size.hypot_(self._floor)  # [..., 1]

    def __call__(self, x: Tensor) -> Tensor:
        return (x / self.length(x)).to(x.dtype)


class Norm:
    """A norm with its factor."""

    def __init__(self, unscaled: UnscaledNorm, factor: Tensor) -> None:
        self._unscaled, self.factor = unscaled, factor  # [..., width]

    def __call__(self, x: Tensor) -> Tensor:
        return self._unscaled(x).mul_(self.factor)

    def apply_to(self, x: Tensor) -> None:
        """The same in place."""
        x.div_(self._unscaled.length(x)).mul_(self.factor)


def add_product(total: Tensor, x: Tensor, product: Linear, norm: Norm | None) -> None:
    """total += norm(product(x)), in place."""
    if norm is None:
        product.add_to(total, x)
    else:
        total.add_(norm(product(x)))
