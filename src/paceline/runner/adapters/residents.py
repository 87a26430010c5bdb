"""The adapters of resident sequences on the CPU."""

import numpy as np
import torch

from paceline.core.plan import Plan, Rows
from paceline.runner.adapters.host import HostAdapters
from paceline.runner.adapters.places import NO_PLACE, AdapterPlaces
from paceline.runner.adapters.rows import StepAdapters
from paceline.runner.adapters.weights import AdapterWeights


class ResidentAdapters:
    """The memory of the host is that of the device, so a place holds the adapter itself."""

    def __init__(self, host: HostAdapters, max_loras: int, slots: int) -> None:
        self._host = host
        self._weights: dict[int, AdapterWeights] = {}  # by place
        self._places = AdapterPlaces(max_loras, slots, self._fill)

    def apply(self, plan: Plan) -> None:
        """Follow the changes of a plan."""
        self._places.apply(plan)

    def of_step(self, rows: Rows) -> StepAdapters | None:
        """The adapters of the rows; None if none has one."""
        if not self._places.any_used:
            return None
        place = self._places.of_rows(rows.slot)
        if (place == NO_PLACE).all():
            return None
        of_position = torch.from_numpy(np.repeat(place, rows.count))
        return StepAdapters(self._weights, of_position)

    def _fill(self, place: int, identity: str) -> None:
        self._weights[place] = self._host.weights(identity)
