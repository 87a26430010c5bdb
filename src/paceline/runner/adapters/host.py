"""The adapters in the memory of the host."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from torch import Tensor

from paceline.core.arrays import I32, Index
from paceline.core.plan import Plan, Rows
from paceline.runner.adapters.targets import AdapterTargets
from paceline.runner.adapters.weights import AdapterWeights, read_adapter
from paceline.runner.tensors import from_numpy


class HostAdapters:
    """Adapters by identity. The engine decides which ones are kept: see `engine.core.adapters`."""

    def __init__(
        self,
        targets: AdapterTargets,
        max_lora_rank: int,
        form: Callable[[AdapterWeights], AdapterWeights] = lambda adapter: adapter,
    ) -> None:
        """`form` converts an adapter to what the device needs."""
        self._targets, self._most_rank, self._form = targets, max_lora_rank, form
        self._kept: dict[str, AdapterWeights] = {}

    def read(self, path: str) -> AdapterWeights:
        """Read the files of an adapter, on any thread. RequestError says what is wrong."""
        return self._form(read_adapter(Path(path), self._targets, self._most_rank))

    def keep(self, identity: str, adapter: AdapterWeights) -> None:
        self._kept[identity] = adapter

    def drop(self, identity: str) -> None:
        self._kept.pop(identity, None)

    def weights(self, identity: str) -> AdapterWeights:
        """The engine keeps the adapters of all open requests that may run."""
        return self._kept[identity]


NO_ADAPTER = -1


class AdapterTable:
    """Adapters on the device by index. An adapter that residents use keeps its index; otherwise the
    least recently used one is replaced first.

    `of_slot[s]` is the index of the adapter of slot s, or `NO_ADAPTER`.
    """

    def __init__(self, capacity: int, slots: int, fill: Callable[[int, str], None]) -> None:
        """`fill` loads an adapter at an index."""
        self._fill = fill
        self._identity = [""] * capacity
        self._users = [0] * capacity
        self._order = list(range(capacity))  # least recently used first
        self.of_slot: I32 = np.full(slots, NO_ADAPTER, np.int32)
        self.any_used = False

    def apply(self, plan: Plan) -> bool:
        """Follow the changes of a plan. Returns whether the index of a slot changed."""
        changed = False
        for slot in plan.released:
            changed |= self._release(slot)
        for new in plan.admitted:
            if new.request.adapter:
                self._release(new.slot)
                self._use(new.slot, new.request.adapter)
                changed = True
        if changed:
            self.any_used = any(self._users)
        return changed

    def of_rows(self, slot: Index) -> I32 | None:
        """The indices of the adapters of these slots; None if none of them has an adapter."""
        if not self.any_used:
            return None
        found = self.of_slot[slot]
        return None if (found == NO_ADAPTER).all() else found

    def _release(self, slot: int) -> bool:
        index = int(self.of_slot[slot])
        if index == NO_ADAPTER:
            return False
        self._users[index] -= 1
        self.of_slot[slot] = NO_ADAPTER
        return True

    def _use(self, slot: int, identity: str) -> None:
        if identity not in self._identity:
            free = next((index for index in self._order if not self._users[index]), None)
            assert free is not None, "more adapters than max_loras in one step"
            self._fill(free, identity)
            self._identity[free] = identity
        index = self._identity.index(identity)
        self._order.remove(index)
        self._order.append(index)
        self._users[index] += 1
        self.of_slot[slot] = index


class ResidentAdapters:
    """Adapters of residents on a CPU, which computes with the weights of `HostAdapters`."""

    def __init__(
        self,
        host: HostAdapters,
        weights: dict[int, AdapterWeights],
        max_loras: int,
        slots: int,
    ) -> None:
        """`weights` are those of the model by adapter index; adapters are added there."""
        self.host, self._weights = host, weights
        self._table = AdapterTable(max_loras, slots, self._fill)

    def apply(self, plan: Plan) -> None:
        """Follow the changes of a plan."""
        self._table.apply(plan)

    def of_step(self, rows: Rows) -> Tensor | None:
        """Adapter indices, [positions]; None if no row has one."""
        index = self._table.of_rows(rows.slot)
        return None if index is None else from_numpy(np.repeat(index, rows.count))

    def _fill(self, index: int, identity: str) -> None:
        self._weights[index] = self.host.weights(identity)
