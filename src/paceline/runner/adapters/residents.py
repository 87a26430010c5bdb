"""The adapters of resident sequences on the CPU."""

import numpy as np
import torch
from torch import Tensor

from paceline.core.plan import Plan, Rows
from paceline.runner.adapters.host import HostAdapters
from paceline.runner.adapters.places import AdapterPlaces
from paceline.runner.adapters.weights import AdapterWeights


class ResidentAdapters:
    """The memory of the host is that of the device, so a place holds the adapter itself."""

    def __init__(
        self,
        host: HostAdapters,
        weights: dict[int, AdapterWeights],
        max_loras: int,
        slots: int,
    ) -> None:
        """`weights` of the model get the adapters by place."""
        self.host, self._weights = host, weights
        self._places = AdapterPlaces(max_loras, slots, self._fill)

    def apply(self, plan: Plan) -> None:
        """Follow the changes of a plan."""
        self._places.apply(plan)

    def of_step(self, rows: Rows) -> Tensor | None:
        """The places of the adapters, [positions]; None if no row has one."""
        place = self._places.of_rows(rows.slot)
        return None if place is None else torch.from_numpy(np.repeat(place, rows.count))

    def _fill(self, place: int, identity: str) -> None:
        self._weights[place] = self.host.weights(identity)
