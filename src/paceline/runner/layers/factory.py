"""Builds layers from the tensors of a checkpoint, as a description names them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.runner.layers.linear import Linear, LinearKind
from paceline.runner.layers.norm import Norm, UnscaledNorm
from paceline.runner.models.architecture import HeadNorms, NormSpec, ProductSpec, TensorSpec
from paceline.runner.weights.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True, eq=False)
class LayerFactory:
    """A checkpoint, and the form that its tensors take in a model.

    Everything is computed in float32 and rounded once, to `dtype` or by the kind of product.
    """

    checkpoint: Checkpoint
    dtype: torch.dtype
    device: torch.device | str
    linear_kind: LinearKind

    def read(self, tensor: TensorSpec) -> Tensor:
        return self.checkpoint.read(tensor.name).to(self.device, torch.float32)

    def joined(self, tensors: tuple[TensorSpec, ...]) -> Tensor:
        """Several tensors, one below the other."""
        read = [self.read(tensor) for tensor in tensors]
        return torch.cat(read) if len(read) > 1 else read[0]

    def unscaled_norm(self, floor: float) -> UnscaledNorm:
        return UnscaledNorm(floor, self.device)

    def factor(self, norm: NormSpec) -> Tensor:
        """The factor sqrt(width) * weight of a norm, [width]."""
        weight = self.read(norm.weight) + norm.offset
        return weight.mul_(norm.width**0.5)

    def head_factor(self, norms: HeadNorms, heads: int, kv_heads: int) -> Tensor:
        """The factors of all heads of queries, then of keys, [heads + kv_heads, head_dim]."""
        query, key = self.factor(norms.query), self.factor(norms.key)
        return torch.cat((query.expand(heads, -1), key.expand(kv_heads, -1)))

    def norm(self, norm: NormSpec) -> Norm:
        return Norm(self.unscaled_norm(norm.floor), self.factor(norm).to(self.dtype))

    def optional_norm(self, norm: NormSpec | None) -> Norm | None:
        return None if norm is None else self.norm(norm)

    def head_norm(self, norms: HeadNorms | None, heads: int, kv_heads: int) -> Norm | None:
        """One norm over the heads of queries and keys, which lie side by side."""
        if norms is None:
            return None
        factor = self.head_factor(norms, heads, kv_heads)
        return Norm(self.unscaled_norm(norms.floor), factor.to(self.dtype))

    def linear(self, product: ProductSpec, before: NormSpec | None = None) -> Linear:
        """A product, and the factor of the norm before it, if the norm leaves its factor to it."""
        weight = self.joined(product.weights)  # [outputs, inputs]
        bias = self.joined(product.biases) if product.biases else None  # [outputs]
        factor = None if before is None else self.factor(before)  # [inputs]
        return self.linear_kind(weight, bias, self.dtype, factor)
