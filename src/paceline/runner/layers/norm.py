"""Norms, rotary embeddings, and copies of layer inputs."""

from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.runner.layers.linear import Linear
from paceline.runner.tensors import vector_norm


class UnscaledNorm:
    """A norm without its factor sqrt(width) * weight.

    The linear after a norm has the factor folded into its weights; elsewhere `Norm` applies it.
    The floor is sqrt(width * eps), the least divisor of a row. A centred norm subtracts the mean
    of a row first.
    """

    def __init__(self, floor: float, device: torch.device | str, is_centred: bool = False) -> None:
        self._floor, self._is_centred = torch.tensor(floor, device=device), is_centred

    def length(self, x: Tensor) -> Tensor:
        """sqrt(width) * sqrt(mean(x * x) + eps) = hypot(|x|, floor), in float32."""
        size = vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        return size.hypot_(self._floor)  # [..., 1]

    def __call__(self, x: Tensor) -> Tensor:
        given = x - x.mean(dim=-1, keepdim=True, dtype=torch.float32) if self._is_centred else x
        return (given / self.length(given)).to(x.dtype)


class Norm:
    """A norm with its factor and, if it has one, its bias."""

    def __init__(self, unscaled: UnscaledNorm, factor: Tensor, bias: Tensor | None = None) -> None:
        self._unscaled, self.factor, self._bias = unscaled, factor, bias  # [width] each

    def __call__(self, x: Tensor) -> Tensor:
        found = self._unscaled(x).mul_(self.factor)
        return found if self._bias is None else found.add_(self._bias)


class HeadNorm:
    """An RMS norm of each head of queries and keys, which are adjacent."""

    def __init__(self, unscaled: UnscaledNorm, factor: Tensor) -> None:
        self._unscaled, self.factor = unscaled, factor  # [heads + kv_heads, head_dim]

    def apply_to(self, x: Tensor) -> None:
        """Norm heads [positions, heads + kv_heads, head_dim] in place."""
        x.div_(self._unscaled.length(x)).mul_(self.factor)


class WholeHeadNorm:
    """Two RMS norms: one over all heads of queries, and one over all heads of keys."""

    def __init__(self, query: UnscaledNorm, key: UnscaledNorm, heads: int, factor: Tensor) -> None:
        self._query, self._key, self._heads = query, key, heads
        self.factor = factor  # [heads + kv_heads, head_dim]

    def apply_to(self, x: Tensor) -> None:
        """Norm heads [positions, heads + kv_heads, head_dim] in place."""
        for norm, part in ((self._query, x[:, : self._heads]), (self._key, x[:, self._heads :])):
            part.div_(norm.length(part.flatten(1)).unsqueeze(-1))
        x.mul_(self.factor)


def add_linear(total: Tensor, x: Tensor, linear: Linear, norm: Norm | None) -> None:
    """total += norm(linear(x)), in place."""
    if norm is None:
        linear.add_to(total, x)
    else:
        total.add_(norm(linear(x)))


@dataclass(frozen=True, slots=True, eq=False)
class Rotation:
    """Rotary cos/sin for the positions of a step. Pair i of a head is (x[i], x[i + half])."""

    cos: Tensor  # [positions, 1, head_dim]
    sin: Tensor  # [positions, 1, head_dim]; negative in the first half

    @staticmethod
    def of(position: Tensor, rope: Tensor, dtype: torch.dtype) -> "Rotation":
        """`position` is [positions], or [positions, head_dim / 2] if it differs between pairs.
        `rope` is [2, head_dim / 2]: frequencies and amplitudes, in float32."""
        frequencies, amplitudes = rope
        by_pair = position.unsqueeze(1) if position.dim() == 1 else position
        angle = by_pair * frequencies  # [positions, head_dim / 2]
        cos, sin = angle.cos().mul_(amplitudes), angle.sin().mul_(amplitudes)
        return Rotation(
            torch.cat((cos, cos), dim=1).unsqueeze(1).to(dtype),
            torch.cat((-sin, sin), dim=1).unsqueeze(1).to(dtype),
        )

    def rotate(self, x: Tensor) -> None:
        """Rotate heads [positions, heads, head_dim] in place."""
        swapped = x.roll(x.shape[-1] // 2, dims=-1)
        x.mul_(self.cos).addcmul_(swapped, self.sin)


class LayerInputs:
    """Copies of the inputs of some layers, side by side.

    rows   | before layer 2 | before layer 16 | before layer 29 |     one per position
    """

    def __init__(self, layers: tuple[int, ...], rows: Tensor) -> None:
        """`rows` [positions or more, layers * width] is overwritten."""
        self.layers, self.rows = layers, rows

    def keep(self, layer: int, hidden: Tensor) -> None:
        """Copy the residual stream [positions, width] before this layer, if it is one of them."""
        for index, one in enumerate(self.layers):
            if one == layer:
                width = hidden.shape[1]
                self.rows[: len(hidden), index * width : (index + 1) * width] = hidden
