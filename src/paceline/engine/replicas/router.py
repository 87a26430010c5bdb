"""Chooses one of several engines for each request: by prefix and load, without any I/O."""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Generic, TypeVar

from paceline.core.errors import QueueFull
from paceline.core.request import Request
from paceline.engine.loop.messages import Capacity
from paceline.kv.keys import Keys

Replica = TypeVar("Replica", bound=Hashable)


class PrefixAffinity(Generic[Replica]):
    """Remembers which replica was given which blocks, and does no I/O.

    A prompt is a list of keys, one for each of its first blocks. A key must depend on all blocks
    before it, as those of `paceline.kv.keys` do. The replicas and their loads are given with every
    choice, so they may come and go. A load is any number that grows with the work in flight, such
    as open requests or their tokens.

    The rules of a choice:

    1. A replica is busy if its load is above `slack` plus `ratio` times the least load.
    2. Among the replicas that are not busy, the one with the longest known prefix is chosen.
    3. Among equals, two are drawn at random, and the one with the lower load is chosen, or with
       equal loads the one that knows fewer blocks.

    The memory of each replica is bounded: beyond `most_blocks`, the blocks that were not used for
    the longest time are forgotten, the last ones of a prompt first. So a known block's
    predecessors are known too. With the number of blocks of the replica's cache, the memory
    resembles that cache.

        affinity = PrefixAffinity[str](most_blocks=10_000, slack=8)
        chosen = affinity.choose(keys, {"a": 3, "b": 5})
        affinity.record(chosen, keys)  # once the request was sent
    """

    def __init__(
        self,
        most_blocks: int = 65536,
        slack: float = 8.0,
        ratio: float = 1.25,
        random: Random | None = None,
    ) -> None:
        self._most_blocks, self._slack, self._ratio = most_blocks, slack, ratio
        self._random = random or Random()
        self._known: dict[Replica, OrderedDict[bytes, None]] = {}  # least recently used first

    def choose(self, keys: Sequence[bytes], loads: Mapping[Replica, float]) -> Replica:
        """One of the replicas in `loads`, of which there is at least one."""
        bound = self._slack + self._ratio * min(loads.values())
        depths = {one: self.depth(one, keys) for one, load in loads.items() if load <= bound}
        longest = max(depths.values())
        equals = [one for one, depth in depths.items() if depth == longest]
        drawn = self._random.sample(equals, min(2, len(equals)))
        return min(drawn, key=lambda one: (loads[one], len(self._known.get(one, ()))))

    def record(self, replica: Replica, keys: Sequence[bytes]) -> None:
        """The replica gets a prompt, so it will have these blocks."""
        known = self._known.setdefault(replica, OrderedDict())
        for key in reversed(keys[: self._most_blocks]):
            known[key] = None
            known.move_to_end(key)
        while len(known) > self._most_blocks:
            known.popitem(last=False)

    def depth(self, replica: Replica, keys: Sequence[bytes]) -> int:
        """How many of the first blocks of a prompt the replica has had."""
        known = self._known.get(replica)
        if not known or not keys or keys[0] not in known:
            return 0
        return bisect_left(keys, True, 1, key=lambda key: key not in known)

    def forget(self, replica: Replica) -> None:
        """The replica is gone, or its cache is empty."""
        self._known.pop(replica, None)


FIRST_BLOCKS = 128  # of a prompt, by which an engine is chosen
PROMPT_TOKENS = 1024  # that are new to an engine; they count as much as a running sequence


@dataclass(slots=True, eq=False)
class Route:
    """What a router knows of a request, and the engine that it is submitted to."""

    keys: list[bytes]  # of the first blocks of the prompt
    prompt: int  # tokens
    width: int  # sequences
    engine: int = -1
    load: float = 0.0  # of the request, in sequences
    turned_away: bool = False  # by an engine whose queue was full

    def turns(self, error: Exception) -> bool:
        """May it try another engine after this refusal? It may, once, if the queue was full."""
        if self.turned_away or not isinstance(error, QueueFull):
            return False
        self.turned_away = True
        return True


class Router:
    """The load of an engine is the sum over the requests that were placed there and did not leave.

    `random` breaks ties. The capacity is that of each engine.
    """

    def __init__(self, capacity: Capacity, random: Random | None = None) -> None:
        self.loads = [0.0] * capacity.engines
        compares = capacity.enable_prefix_caching and capacity.engines > 1
        self._keys = Keys(capacity.block_size) if compares else None
        self._affinity = PrefixAffinity[int](capacity.num_blocks, random=random)

    def route(self, request: Request) -> Route:
        """A request that has no engine yet."""
        keys: list[bytes] = []
        if self._keys is not None:
            first = request.prompt[: FIRST_BLOCKS * self._keys.block_size]
            self._keys.extend(keys, request, first)
        return Route(keys, len(request.prompt), request.width)

    def choose(self, route: Route, engines: Sequence[int]) -> int:
        """Where a request should go. It counts from `place` on."""
        return self._affinity.choose(route.keys, {one: self.loads[one] for one in engines})

    def place(self, route: Route, engine: int) -> None:
        """The engine has the request now."""
        known = self._affinity.depth(engine, route.keys)
        known *= self._keys.block_size if self._keys is not None else 0
        route.engine = engine
        route.load = route.width + (route.prompt - known) / PROMPT_TOKENS
        self._affinity.record(engine, route.keys)
        self.loads[engine] += route.load

    def leave(self, route: Route) -> None:
        """The engine does not have the request any more."""
        self.loads[route.engine] -= route.load

    def forget(self, engine: int) -> None:
        """The cache of an engine is empty."""
        self._affinity.forget(engine)
