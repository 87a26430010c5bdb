"""Makes layers out of the tensors of a checkpoint."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.runner.layers.linear import Linear, LinearKind
from paceline.runner.layers.norm import Direction, Norm
from paceline.runner.models.config import ModelConfig
from paceline.runner.weights.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """A checkpoint and the form that its tensors are to take.

    Everything is computed in float32 and rounded once, to `dtype` or by the kind of product.
    """

    checkpoint: Checkpoint
    dtype: torch.dtype
    device: torch.device | str
    linear_kind: LinearKind

    @property
    def config(self) -> ModelConfig:
        return self.checkpoint.config

    def read(self, name: str) -> Tensor:
        return self.checkpoint.read(name).to(self.device, torch.float32)

    def direction(self, width: int) -> Direction:
        return Direction(width, self.config.norm_eps, self.device)

    def factor(self, name: str) -> Tensor:
        """What a norm multiplies directions by."""
        weight = self.read(f"{name}.weight") + self.config.traits.norm_offset
        return weight.mul_(weight.shape[-1] ** 0.5)  # [width]

    def norm(self, name: str) -> Norm:
        factor = self.factor(name)
        return Norm(self.direction(len(factor)), factor.to(self.dtype))

    def head_norm(self, names_and_heads: Sequence[tuple[str, int]]) -> Norm:
        """One norm over heads of several kinds that lie beside each other."""
        factors = [self.factor(name).expand(heads, -1) for name, heads in names_and_heads]
        factor = torch.cat(factors)  # [heads, head_dim]
        return Norm(self.direction(factor.shape[1]), factor.to(self.dtype))

    def linear(self, names: Sequence[str], before: Tensor | None = None) -> Linear:
        """One product for several matrices, with the factor `before` of a norm that precedes."""
        weights = [self.read(f"{name}.weight") for name in names]
        weight = torch.cat(weights) if len(weights) > 1 else weights[0]  # [outputs, inputs]
        has_bias = f"{names[0]}.bias" in self.checkpoint.shapes
        bias = torch.cat([self.read(f"{name}.bias") for name in names]) if has_bias else None
        return self.linear_kind(weight, bias, self.dtype, before)
