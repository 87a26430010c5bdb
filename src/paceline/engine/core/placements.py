"""Which of several engines has which request, and which one gets the next."""

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.core.request import Request
from paceline.engine.core.messages import Capacity, Delivery
from paceline.fleet.affinity import PrefixAffinity
from paceline.kv.keys import Keys

FIRST_BLOCKS = 128  # of a prompt, by which an engine is chosen
PROMPT_TOKENS = 1024  # that are new to an engine; they count as much as a running sequence


@dataclass(slots=True, eq=False)
class Placement:
    """A request, and the engine that it was submitted to."""

    request: Request
    engine: int
    keys: list[bytes]
    load: float  # of the request, in sequences
    parked: str = ""
    begun: bool = False  # has a part of its output been delivered?
    aborted: bool = False
    moved: bool = False  # from an engine that died

    @property
    def handles(self) -> range:
        """What its sequences are called in deliveries."""
        return range(self.request.handle, self.request.handle + self.request.width)


class Placements:
    """Every open request has one engine. The load of an engine is the sum over its requests.

    `_fresh` has the handles of sequences without a token, for each engine, so that a delivery
    costs no Python for each of its rows.
    """

    def __init__(self, capacity: Capacity) -> None:
        self.open: dict[str, Placement] = {}
        self._keys = Keys(capacity.block_size) if capacity.enable_prefix_caching else None
        self._affinity = PrefixAffinity[int](capacity.num_blocks)
        self._loads = [0.0] * capacity.engines
        self._fresh: list[set[int]] = [set() for _ in range(capacity.engines)]

    def chosen(self, request: Request, engines: Sequence[int]) -> Placement:
        """Where a request should go. It counts from `add` on."""
        keys: list[bytes] = []
        if self._keys is not None:
            first = request.prompt[: FIRST_BLOCKS * self._keys.block_size]
            self._keys.extend(keys, request, first)
        engine = self._affinity.choose(keys, {one: self._loads[one] for one in engines})
        known = self._affinity.depth(engine, keys) * (self._keys.block_size if self._keys else 0)
        load = request.width + (len(request.prompt) - known) / PROMPT_TOKENS
        return Placement(request, engine, keys, load)

    def add(self, placement: Placement) -> None:
        """The engine has the request now."""
        self.open[placement.request.id] = placement
        self._affinity.record(placement.engine, placement.keys)
        self._loads[placement.engine] += placement.load
        self._fresh[placement.engine].update(placement.handles)

    def delivered(self, engine: int, delivery: Delivery) -> None:
        """Requests have begun or ended."""
        fresh = self._fresh[engine]
        if fresh:
            fresh.difference_update(delivery.handle.tolist())
        for part in (*delivery.prompt, *delivery.pooled):
            if (placement := self.open.get(part.request_id)) is not None:
                placement.begun = True
        for ended in delivery.ended:
            if ended.child < 0:
                self.remove(ended.request_id)
        for refused in delivery.refused:
            self.remove(refused.request_id)

    def take_lost(self, engine: int) -> list[Placement]:
        """Remove and return the requests of an engine that died. Its cache is empty."""
        self._affinity.forget(engine)
        lost = [one for one in self.open.values() if one.engine == engine]
        for one in lost:
            one.begun = one.begun or not self._fresh[engine].issuperset(one.handles)
        for one in lost:
            self.remove(one.request.id)
        return lost

    def forget_prefixes(self) -> None:
        """The caches of all engines are empty."""
        for engine in range(len(self._loads)):
            self._affinity.forget(engine)

    def remove(self, request_id: str) -> None:
        """The engine does not have the request any more."""
        if (placement := self.open.pop(request_id, None)) is not None:
            self._loads[placement.engine] -= placement.load
            self._fresh[placement.engine].difference_update(placement.handles)
