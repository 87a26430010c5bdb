"""Coordinates of positions on a GPU, for models in which a position has a row and a column."""

import numpy as np
import torch
from torch import Tensor

from paceline.core.plan import Plan
from paceline.runner.coordinates import request_coordinates
from paceline.runner.cuda.staging import Staging
from paceline.runner.models.rope import AXES


class CudaCoordinates:
    """The coordinates of every position of every slot, and of one more slot for padding.

    In slots without images, each coordinate of a position is its place. Behind a prompt with
    images, each position is as far from its place as the last one of the prompt.
    """

    def __init__(self, slots: int, length: int, square: int, device: torch.device) -> None:
        """`square`: pixels along each side of what becomes one embedding of an image."""
        self._square, self._staging = square, Staging(device)
        self._places = torch.arange(length, dtype=torch.int32, device=device)
        self._table = self._places.repeat(AXES, slots + 1, 1)  # [axes, slots + 1, length]
        self._shown: set[int] = set()  # slots whose table is that of a prompt with images

    def apply(self, plan: Plan) -> None:
        """Follow the changes of a plan."""
        for new in plan.admitted:
            own = self._table[:, new.slot]
            if new.request.items:
                known = request_coordinates(new.request, self._square)
                own[:] = self._places + int(known[-1, 0] - len(new.request.prompt))
                (sent,) = self._staging.send(known.T.astype(np.int32).ravel())
                own[:, : len(known)] = sent.view(AXES, -1)
                self._shown.add(new.slot)
            elif new.slot in self._shown:
                own[:] = self._places
                self._shown.remove(new.slot)

    def of(self, slot: Tensor, position: Tensor) -> Tensor:
        """The coordinates of positions in slots, [n] each: [n, axes]."""
        at = slot.long() * len(self._places) + position
        return self._table.view(AXES, -1).index_select(1, at).t()
