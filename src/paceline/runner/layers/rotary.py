"""Rotary position embedding."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Rotation:
    """Cosines and sines for the positions of a step. Pair i of a head is (x[i], x[i + half])."""

    cos: Tensor  # [positions, 1, head_dim]
    sin: Tensor  # [positions, 1, head_dim]; negative in the first half

    @staticmethod
    def of(position: Tensor, rope: Tensor, dtype: torch.dtype) -> "Rotation":
        """`position` is [positions], or [positions, head_dim / 2] if it differs from pair to pair.
        `rope` is [2, head_dim / 2]: frequencies and amplitudes, in float32."""
        frequencies, amplitudes = rope
        by_pair = position.unsqueeze(1) if position.dim() == 1 else position
        angle = by_pair * frequencies  # [positions, head_dim / 2]
        cos, sin = angle.cos().mul_(amplitudes), angle.sin().mul_(amplitudes)
        return Rotation(
            torch.cat((cos, cos), dim=1).unsqueeze(1).to(dtype),
            torch.cat((-sin, sin), dim=1).unsqueeze(1).to(dtype),
        )

    def turn(self, x: Tensor) -> None:
        """Rotate heads [positions, heads, head_dim] in place."""
        swapped = x.roll(x.shape[-1] // 2, dims=-1)
        x.mul_(self.cos).addcmul_(swapped, self.sin)
