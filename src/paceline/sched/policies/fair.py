"""Equal service for tenants, by virtual token counters."""

from collections import Counter
from collections.abc import Hashable, Iterable

import numpy as np

from paceline.core.arrays import I32, Index
from paceline.core.request import Sequence
from paceline.core.settings.config import PolicyConfig
from paceline.sched.policy import Policy, TenantService, View

FORGOTTEN_FROM = 64  # tenants known before the first are forgotten


class Fair(Policy):
    """The tenant that was served least goes first.

    A tenant's counter grows with the prompt tokens computed and the tokens generated for
    it, divided by its weight. `fair_share` is what a tenant would have that was always
    here: the service of each moment, split by weight among those who are, and at least
    where the last admitted tenant stood. One that comes back is lifted to it, so idling
    saves up nothing. A tenant that is ahead of its share waits until about as much has been
    served to each newcomer, and no longer.

    While two tenants both have requests waiting, one is ahead of the other by at most
    (input_token_weight * P + output_token_weight * max_num_seqs * O) / weight, with P its
    longest uncached prompt and O its most outputs: when it was last admitted it was not
    ahead. Work done again after a preemption is not charged.
    """

    def __init__(self, config: PolicyConfig, view: View) -> None:
        super().__init__(config, view)
        self.served: dict[str, float] = {}
        self.fair_share = 0.0
        self._here: Counter[str] = Counter()  # requests that are here and not parked
        # Tenants that are here by weight, of which there are few: a sum that had each of them
        # added and taken away would drift.
        self._weights_here: Counter[float] = Counter()
        self._forget_from = FORGOTTEN_FROM
        self._tenants: list[str] = []  # by number, for those that are here
        self._number: dict[str, int] = {}
        self._vacant: list[int] = []
        self._number_of = np.zeros(view.table.capacity, np.intp)  # by slot

    def flow(self, sequence: Sequence) -> Hashable:
        return sequence.request.tenant

    def flow_rank(self, flow: Hashable) -> float:
        return self.served[str(flow)]

    def service(self) -> Iterable[TenantService]:
        for tenant, requests in self._here.items():
            yield TenantService(tenant, self._weight(tenant), self.served[tenant], requests)

    # -- who is here --------------------------------------------------------

    def joined(self, sequence: Sequence) -> None:
        tenant = sequence.request.tenant
        if not self._here[tenant]:
            self.served[tenant] = max(self.served.get(tenant, 0.0), self.fair_share)
            self._weights_here[self._weight(tenant)] += 1
            self._number[tenant] = self._vacant.pop() if self._vacant else len(self._tenants)
            self._tenants[self._number[tenant] : self._number[tenant] + 1] = [tenant]
        self._here[tenant] += 1

    def woken(self, sequence: Sequence) -> None:
        self.joined(sequence)

    def parked(self, sequence: Sequence) -> None:
        tenant = sequence.request.tenant
        self._here[tenant] -= 1
        if self._here[tenant]:
            return
        del self._here[tenant]
        self._weights_here[self._weight(tenant)] -= 1
        self._vacant.append(self._number.pop(tenant))
        if len(self.served) > self._forget_from:
            self._forget()

    def _forget(self) -> None:
        """Drop tenants that are away and would be lifted anyway."""
        self.served = {
            tenant: served
            for tenant, served in self.served.items()
            if tenant in self._here or served > self.fair_share
        }
        self._forget_from = 2 * len(self.served) + FORGOTTEN_FROM

    def left(self, sequence: Sequence) -> None:
        if not sequence.parked:
            self.parked(sequence)

    # -- service ------------------------------------------------------------

    def admitted(self, sequence: Sequence, uncached: int) -> None:
        tenant = sequence.request.tenant
        self._number_of[sequence.slot] = self._number[tenant]
        if not sequence.preemptions:
            self.fair_share = max(self.fair_share, self.served[tenant])
            self._charge(tenant, uncached * self.config.input_token_weight)

    def sampled(self, slot: Index, count: I32) -> None:
        tokens = np.bincount(self._number_of[slot], weights=count)
        for number in np.flatnonzero(tokens).tolist():
            cost = float(tokens[number]) * self.config.output_token_weight
            self._charge(self._tenants[number], cost)

    def victim(self) -> int:
        """A resident of the tenant that was served most."""
        slots = self.view.table.order
        served = [self.served[self._tenants[number]] for number in self._number_of[slots].tolist()]
        return self.pick(slots[np.array(served) == max(served)])

    def _weight(self, tenant: str) -> float:
        return self.config.tenant_weights.get(tenant, 1.0)

    def _charge(self, tenant: str, cost: float) -> None:
        self.served[tenant] += cost / self._weight(tenant)
        here = sum(weight * tenants for weight, tenants in self._weights_here.items())
        self.fair_share += cost / here
