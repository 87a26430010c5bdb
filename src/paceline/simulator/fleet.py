"""Several simulated servers behind a router, on one time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from math import inf

import numpy as np

from paceline.core.arrays import I32
from paceline.core.errors import ConfigError, PacelineError, RequestError
from paceline.core.system.host import collection_paused
from paceline.engine.loop.messages import Capacity
from paceline.sched.stats import Stats
from paceline.simulator.loads import Workload
from paceline.simulator.requests import SimulatedRequest
from paceline.simulator.results.timeline import Timeline
from paceline.simulator.senders import DEALERS, Senders
from paceline.simulator.server import Replica, ServerModel, SimulatedRun, SimulatedServer

MOST_REPLICAS = 4096
NOBODY = -1


@dataclass(frozen=True, slots=True)
class FleetModel:
    """How many servers there are, and how requests are dealt out to them."""

    replicas: int = 1
    router: str = "prefix"

    def __post_init__(self) -> None:
        if not 1 <= self.replicas <= MOST_REPLICAS:
            raise ConfigError(f"{self.replicas} replicas; give 1 to {MOST_REPLICAS:,}")
        if self.router not in DEALERS:
            raise ConfigError(f"no router {self.router!r}: there are {', '.join(DEALERS)}")

    def doubt(self, load: Workload) -> str:
        """Why the router cannot work as named on this load; empty: it can."""
        if self.router != "sessions" or any(one.follows >= 0 for one in load.requests):
            return ""
        return "No request follows another one: the router sessions does the same as turns."


class SimulatedFleet:
    """Serves one load by several replicas, from its first request to its last.

    The router gives each request to a replica when it is sent, and knows what clients know by
    then. What happens, happens in the order of time.
    """

    def __init__(
        self,
        model: ServerModel,
        fleet: FleetModel,
        requests: Sequence[SimulatedRequest],
        outputs: Mapping[str, I32] | None = None,
        explained: Sequence[str] = (),
    ) -> None:
        """`outputs` and `explained` are those of `SimulatedServer`."""
        self._senders = Senders(requests, explained, model.config.service)
        self._replicas = [
            Replica(model, self._senders, self, outputs) for _ in range(fleet.replicas)
        ]
        capacity = replace(Capacity.of(model.config), engines=fleet.replicas)
        self._dealer = DEALERS[fleet.router](capacity, requests)
        self._sent = list(self._senders.first())  # a heap of times and requests, not yet dealt
        heapify(self._sent)
        self._ends: list[tuple[float, int]] = []  # a heap of what the router does not know yet
        self._next_at = [inf] * fleet.replicas  # when each replica goes on
        self._place = [NOBODY] * len(requests)  # of each request: its replica

    def run(self) -> SimulatedRun:
        with collection_paused():
            while self._go_on():
                pass
        replicas = self._replicas
        place = np.array(self._place)
        return SimulatedRun(
            self._senders.requests,
            self._senders.log,
            Timeline.of_all([one.timeline for one in replicas]),
            Stats.of_all([one.scheduler.stats for one in replicas]),
            sum(one.scheduler.config.cache.num_blocks for one in replicas),
            self._senders.explained,
            [np.flatnonzero(place == number) for number in range(len(replicas))],
        )

    def _go_on(self) -> bool:
        """Let the next thing happen. False: nothing does any more."""
        at = min(self._next_at)
        if self._sent and self._sent[0][0] <= at:
            self._deal(*heappop(self._sent))
            return True
        if at == inf:
            return False
        number = self._next_at.index(at)
        replica = self._replicas[number]
        replica.go_on()
        self._next_at[number] = replica.next_at
        return True

    def _deal(self, at: float, number: int) -> None:
        """A client sends a request, or a replica has refused it."""
        try:
            request = self._senders.build(number, at)
        except RequestError as error:
            self._senders.refuse(number, error, at)
            self.ended(number, at)
            return
        self._learn_ends(at)
        self._place[number] = place = self._dealer.deal(number, request)
        self._replicas[place].send(at, number)
        self._next_at[place] = self._replicas[place].next_at

    def _learn_ends(self, time: float) -> None:
        """Tell the router what has ended by then."""
        while self._ends and self._ends[0][0] <= time:
            self._dealer.ended(heappop(self._ends)[1])

    # -- from the replicas --------------------------------------------------

    def ended(self, number: int, time: float) -> None:
        heappush(self._ends, (time, number))
        for sent in self._senders.followers(number, time):
            heappush(self._sent, sent)

    def takes_back(self, number: int, error: PacelineError, time: float) -> bool:
        """Will the router try another replica?"""
        is_dealt_again = self._dealer.takes_back(number, error)
        if is_dealt_again:
            heappush(self._sent, (time, number))
        return is_dealt_again


def simulated(
    model: ServerModel, fleet: FleetModel, load: Workload, explained: Sequence[str] = ()
) -> SimulatedRun:
    """Simulate a load on one server, or on several."""
    if fleet.replicas == 1:
        return SimulatedServer(model, load.requests, load.outputs, explained).run()
    return SimulatedFleet(model, fleet, load.requests, load.outputs, explained).run()
