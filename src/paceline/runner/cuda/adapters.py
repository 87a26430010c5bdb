"""The adapters of resident sequences on a GPU."""

from dataclasses import replace

import torch
from torch import Tensor

from paceline.core.arrays import Index
from paceline.core.plan import Plan
from paceline.runner.adapters.host import HostAdapters
from paceline.runner.adapters.places import NO_PLACE, AdapterPlaces
from paceline.runner.adapters.weights import AdapterWeights, PartWeights
from paceline.runner.cuda.adapted_products import AdapterRoom
from paceline.runner.cuda.staging import Staging


class CudaAdapters:
    """Copies an adapter to the GPU when a sequence needs it, behind all steps in flight.

    `column[s]` is the place of the adapter of slot s, or -1. Padding rows have none.
    """

    def __init__(self, room: AdapterRoom, slots: int, device: torch.device) -> None:
        self.host = HostAdapters(room.targets, room.sizes.max_rank, pinned)
        self._room, self._staging = room, Staging(device)
        self._places = AdapterPlaces(room.sizes.places, slots, self._fill)
        self.column = torch.full((slots + 1,), NO_PLACE, dtype=torch.int32, device=device)

    def apply(self, plan: Plan) -> None:
        """Follow the changes of a plan."""
        if self._places.apply(plan):
            self._staging.send_into(self.column[:-1], self._places.of_slot)

    def concern(self, slot: Index) -> bool:
        """Whether one of these slots has an adapter."""
        return self._places.of_rows(slot) is not None

    def _fill(self, place: int, identity: str) -> None:
        self._room.put(place, self.host.weights(identity))


def pinned(adapter: AdapterWeights) -> AdapterWeights:
    """The adapter in memory that a GPU copies from by itself, with the inputs of each line of its
    first factors side by side."""
    tensors = [
        one for parts in adapter.sites.values() for part in parts for one in (part.a.t(), part.b)
    ]
    if not tensors:
        return adapter
    sizes = [one.numel() for one in tensors]
    memory = torch.empty(sum(sizes), dtype=tensors[0].dtype, pin_memory=True)
    copies = iter(zip(memory.split(sizes), tensors, strict=True))

    def copied() -> Tensor:
        there, one = next(copies)
        return there.view(one.shape).copy_(one)

    sites = {
        site: tuple(PartWeights(p.first, p.end, copied().t(), copied()) for p in parts)
        for site, parts in adapter.sites.items()
    }
    return replace(adapter, sites=sites)
