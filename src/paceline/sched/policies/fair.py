"""Equal service for tenants, by virtual token counters."""

from collections import Counter
from collections.abc import Hashable

import numpy as np

from paceline.core.arrays import I32, Index
from paceline.core.config import PolicyConfig
from paceline.core.request import Sequence
from paceline.sched.policy import Policy, View

FORGOTTEN_FROM = 1024  # tenants that are away before the first are forgotten


class Fair(Policy):
    """The tenant that was served least goes first.

    A tenant's counter grows with the prompt tokens computed and the tokens generated for
    it, divided by its weight. One that comes back is lifted to where the last admitted
    tenant stood, so idling saves up nothing. While two tenants both have requests
    waiting, their counters stay within the cost of one largest request plus one resident
    batch of each other. Work done again after a preemption is not charged.
    """

    def __init__(self, config: PolicyConfig, view: View) -> None:
        super().__init__(config, view)
        self.served: dict[str, float] = {}
        self._floor = 0.0  # no waiting tenant stands lower
        self._here: Counter[str] = Counter()  # requests not yet ended, by tenant
        self._tenants: list[str] = []  # residents' tenants, by number
        self._number: dict[str, int] = {}
        self._number_of = np.zeros(view.table.capacity, np.intp)  # by slot

    def lane(self, sequence: Sequence) -> Hashable:
        return sequence.request.tenant

    def lane_rank(self, lane: Hashable) -> float:
        return self.served[str(lane)]

    def joined(self, sequence: Sequence) -> None:
        tenant = sequence.request.tenant
        self.served[tenant] = max(self.served.get(tenant, 0.0), self._floor)
        self._here[tenant] += 1

    def admitted(self, sequence: Sequence, uncached: int) -> None:
        tenant = sequence.request.tenant
        if tenant not in self._number:
            self._number[tenant] = len(self._tenants)
            self._tenants.append(tenant)
        self._number_of[sequence.slot] = self._number[tenant]
        if not sequence.preemptions:
            self._floor = max(self._floor, self.served[tenant])
            self._charge(tenant, uncached * self.config.input_token_weight)

    def sampled(self, slot: Index, count: I32) -> None:
        tokens = np.bincount(self._number_of[slot], weights=count)
        for number in np.flatnonzero(tokens).tolist():
            cost = float(tokens[number]) * self.config.output_token_weight
            self._charge(self._tenants[number], cost)

    def left(self, sequence: Sequence) -> None:
        tenant = sequence.request.tenant
        self._here[tenant] -= 1
        if not self._here[tenant]:
            del self._here[tenant]
        if len(self.served) > 2 * len(self._here) + FORGOTTEN_FROM:
            self._forget()

    def _forget(self) -> None:
        """Drop tenants that are away and would be lifted anyway."""
        self.served = {
            tenant: served
            for tenant, served in self.served.items()
            if tenant in self._here or served > self._floor
        }
        here = [tenant for tenant in self._tenants if tenant in self._here]
        renumbered = np.zeros(len(self._tenants), np.intp)
        for number, tenant in enumerate(here):
            renumbered[self._number[tenant]] = number
        self._number_of = renumbered[self._number_of]
        self._tenants = here
        self._number = {tenant: number for number, tenant in enumerate(here)}

    def victim(self) -> int:
        """A resident of the tenant that was served most."""
        slots = self.view.table.order
        served = [self.served[self._tenants[number]] for number in self._number_of[slots].tolist()]
        return self.pick(slots[np.array(served) == max(served)])

    def _charge(self, tenant: str, cost: float) -> None:
        self.served[tenant] += cost / self.config.tenant_weights.get(tenant, 1.0)
