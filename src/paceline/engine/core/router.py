"""Chooses one of several engines for each request: by prefix and load, without any I/O."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from paceline.core.errors import QueueFull
from paceline.core.request import Request
from paceline.engine.core.messages import Capacity
from paceline.fleet.affinity import PrefixAffinity
from paceline.kv.keys import Keys

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
