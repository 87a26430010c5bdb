"""Which adapter lies where on the device, and which one each slot uses."""

from collections.abc import Callable

import numpy as np

from paceline.core.arrays import I32, Index
from paceline.core.plan import Plan

NO_PLACE = -1


class AdapterPlaces:
    """Of `max_loras` places, those that residents use stay as they are. An adapter stays in its
    place until another one needs it, the least recently used first.

    `of_slot[s]` is the place of the adapter of slot s, or `NO_PLACE`.
    """

    def __init__(self, places: int, slots: int, fill: Callable[[int, str], None]) -> None:
        """`fill` puts an adapter into a place."""
        self._fill = fill
        self._identity = [""] * places
        self._users = [0] * places
        self._order = list(range(places))  # least recently used first
        self.of_slot: I32 = np.full(slots, NO_PLACE, np.int32)
        self.any_used = False

    def apply(self, plan: Plan) -> bool:
        """Follow the changes of a plan. Returns whether a slot has another place now."""
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
        """The places of these slots; None if none of them has an adapter."""
        if not self.any_used:
            return None
        found = self.of_slot[slot]
        return None if (found == NO_PLACE).all() else found

    def _release(self, slot: int) -> bool:
        place = int(self.of_slot[slot])
        if place == NO_PLACE:
            return False
        self._users[place] -= 1
        self.of_slot[slot] = NO_PLACE
        return True

    def _use(self, slot: int, identity: str) -> None:
        if identity not in self._identity:
            free = next((place for place in self._order if not self._users[place]), None)
            assert free is not None, "more adapters than max_loras in one step"
            self._fill(free, identity)
            self._identity[free] = identity
        place = self._identity.index(identity)
        self._order.remove(place)
        self._order.append(place)
        self._users[place] += 1
        self.of_slot[slot] = place
