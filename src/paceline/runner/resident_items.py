"""The multimodal items of resident sequences: encoded, and merged into the batch of a step."""

from dataclasses import replace

from torch import Tensor

from paceline.core.plan import Plan
from paceline.core.request import Request
from paceline.runner.batch import Batch
from paceline.runner.coordinates import Coordinates
from paceline.runner.encoder_store import EncoderStore


class ResidentItems:
    """Follows plans. Positions of items have embeddings from the store, and in some models the
    positions of sequences with items have coordinates of their own."""

    def __init__(self, store: EncoderStore, coordinates: Coordinates | None = None) -> None:
        self._store, self._coordinates = store, coordinates
        self._requests: dict[int, Request] = {}  # with items, by slot

    def apply(self, plan: Plan) -> None:
        """Follow the changes of a plan."""
        for slot in plan.released:
            if self._requests.pop(slot, None) is not None and self._coordinates is not None:
                self._coordinates.release(slot)
        for new in plan.admitted:
            if new.request.items:
                self._requests[new.slot] = new.request
                if self._coordinates is not None:
                    self._coordinates.admit(new.slot, new.request)

    def encode(self, plan: Plan) -> None:
        """Encode what a plan lists."""
        if plan.encode:
            self._store.encode(plan.encode, self._requests)

    def merged(self, batch: Batch, plan: Plan, slot: Tensor) -> Batch:
        """The batch of a step, with what its positions have of items. Its rows have `slot`."""
        if not self._requests:
            return batch
        items = self._store.read(plan.embedded, batch.row_start)
        places = None
        if self._coordinates is not None:
            places = self._coordinates.of(slot, batch.position, batch.row_start)
        return replace(batch, items=items, coordinates=places)
