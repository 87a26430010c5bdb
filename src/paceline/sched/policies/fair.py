"""Fair service of tenants, by virtual token counters."""

from collections import Counter
from collections.abc import Hashable, Iterable

import numpy as np

from paceline.core.arrays import I32, Index
from paceline.core.request import Sequence
from paceline.core.settings.config import PolicyConfig
from paceline.sched.policy import Policy, TenantService, View, within_budget
from paceline.sched.service.prompt_room import PromptRoom

FORGOTTEN_FROM = 64  # least number of known tenants before any are dropped


class Fair(Policy):
    """The tenant with the least service goes first.

    A tenant's counter grows with the prompt tokens computed and the tokens generated for it,
    divided by its weight. `fair_share` is the counter of a tenant that is always active: all
    service is split by weight among the active tenants, and it is at least the counter of the
    tenant admitted last. A tenant that comes back is lifted to it, so idle time earns no credit. A
    tenant ahead of its share waits until each newcomer has received about as much, and no longer.

    While two tenants both have requests waiting, one is ahead of the other by at most
    (input_token_weight * P + output_token_weight * max_num_seqs * O) / weight, with P its longest
    uncached prompt and O its most outputs: at its last admission it was not ahead. Recomputation
    after a preemption is not charged.

    With targets, a step is as long as the pace of those who run allows, so that prompts of one
    tenant do not slow the tokens of another.
    """

    def __init__(self, config: PolicyConfig, view: View) -> None:
        super().__init__(config, view)
        self.learns = view.promises.of_all
        self._room = PromptRoom(view)
        self.served: dict[str, float] = {}
        self.fair_share = 0.0
        self._here: Counter[str] = Counter()  # requests of active tenants, not parked
        # Active tenants by weight, of which there are few: adding and subtracting each weight to
        # one sum would drift.
        self._weights_here: Counter[float] = Counter()
        self._forget_from = FORGOTTEN_FROM
        self._tenants: list[str] = []  # active ones, by number
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

    # -- active tenants -----------------------------------------------------

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
        """Drop inactive tenants that would be lifted anyway."""
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
        """A resident of the tenant with the most service."""
        slots = self.view.table.order
        served = [self.served[self._tenants[number]] for number in self._number_of[slots].tolist()]
        return self.pick(slots[np.array(served) == max(served)])

    def share(self, slot: Index, want: I32, budget: int) -> I32:
        if not self.view.promises.open:
            return within_budget(want, budget)
        self._room.prepare(budget)
        return self._room.share(slot, want, budget, self._room.prompts(slot, want))

    def room(self, sequence: Sequence, rest: int, taken: int, left: int) -> int:
        if not self.view.promises.open:
            return left
        self._room.prepare(taken + left)
        return self._room.of_arrival(sequence, rest, taken, left)

    def _weight(self, tenant: str) -> float:
        return self.config.tenant_weights.get(tenant, 1.0)

    def _charge(self, tenant: str, cost: float) -> None:
        self.served[tenant] += cost / self._weight(tenant)
        here = sum(weight * tenants for weight, tenants in self._weights_here.items())
        self.fair_share += cost / here
