"""How far the heads of a position are turned, as tables on a GPU."""

import torch
from torch import Tensor

from paceline.runner.models.rope import Rope


class TurnTable:
    """The turns of every position, and of positions with several coordinates.

    by_place   cosines and sines, [positions, 2, head_dim / 2]
    """

    def __init__(self, rope: Rope, positions: int, device: torch.device | str) -> None:
        self.by_place = rotary_table(rope, positions, device)
        self._axes = torch.tensor(rope.axes, device=device) if rope.axes else None

    def of(self, coordinates: Tensor) -> Tensor | None:
        """The turns of positions with these coordinates, [n, axes] to [n, 2, head_dim / 2], where
        each pair has the turn of its own one. None if a position is one number."""
        if self._axes is None:
            return None
        by_pair = coordinates.index_select(1, self._axes)  # [n, head_dim / 2]
        return self.by_place.gather(0, by_pair[:, None].expand(-1, 2, -1).long())


def rotary_table(rope: Rope, positions: int, device: torch.device | str) -> Tensor:
    """Return cosines and sines of every position, [positions, 2, head_dim / 2] in float32."""
    each = torch.arange(positions, device=device, dtype=torch.float32)
    angle = each[:, None] * torch.tensor(rope.frequencies, device=device)
    turns = torch.stack((angle.cos(), angle.sin()), dim=1)
    return turns.mul_(torch.tensor(rope.amplitudes, device=device))
