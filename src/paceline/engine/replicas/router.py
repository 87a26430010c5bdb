"""Which of several engines runs a request, by prefix and load, and where its sequences are."""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from random import Random
from typing import Generic, TypeVar

import numpy as np
from msgspec import structs

from paceline.core.arrays import I64
from paceline.core.errors import QueueFull
from paceline.core.kv_transfer import KVTransfer
from paceline.core.request import Request
from paceline.engine.choice_rows import NOBODY, ROW, ChoiceRows, extended
from paceline.engine.loop.messages import Capacity, Delivery
from paceline.engine.transport.wire import EncodedRequest
from paceline.kv.keys import Keys

Replica = TypeVar("Replica", bound=Hashable)
FIRST_BLOCKS = 128  # of a prompt, by which an engine is chosen
PROMPT_TOKENS = 1024  # that are new to an engine; they count as much as a running sequence


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

    @property
    def compares(self) -> bool:
        """Whether an engine is chosen by the prompt."""
        return self._keys is not None

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


class SequenceRows:
    """Engines report a sequence under a handle of ours, front ends know it under one of theirs.

    So a row is found without a search, and a delivery costs no Python for each of its rows.
    `_theirs` has the handle of the front end for each row.
    """

    def __init__(self) -> None:
        self._rows = ChoiceRows[None]()
        self._theirs: I64 = np.empty(0, np.int64)

    def add(self, request: EncodedRequest) -> EncodedRequest:
        """The request as an engine gets it."""
        width = request.width
        own = structs.replace(request, handle=self._rows.next_handle(width))
        self._rows.open((), own.handle, width, deferred=True)
        if len(self._theirs) < len(self._rows.handle):
            self._theirs = extended(self._theirs, len(self._rows.handle))
        first = own.handle & ROW
        self._theirs[first : first + width] = request.handle + np.arange(width)
        return own

    def delivered(self, delivery: Delivery) -> Delivery:
        """Keep the tokens of a delivery; returns it as the front ends know its sequences."""
        new = self._rows.new_tokens(delivery)
        self._rows.tokens.append(new.row, new.ids, new.count)
        theirs = np.full(len(delivery.handle), NOBODY)
        theirs[new.offset] = self._theirs[new.row]
        return replace(delivery, handle=theirs)

    def tokens(self, own: EncodedRequest) -> list[tuple[int, ...]]:
        """The tokens that each sequence of a request has so far."""
        first = own.handle & ROW
        return [tuple(self._rows.tokens.read(first + child)) for child in range(own.width)]

    def release(self, own: EncodedRequest) -> None:
        """A request of `add` has ended."""
        self._rows.release(own.handle, own.width)


@dataclass(slots=True, eq=False)
class Placement:
    """A request, and the engine that it is submitted to."""

    request: EncodedRequest
    route: Route
    ended: set[int] = field(default_factory=set[int])  # of its sequences, or aborted
    aborted: bool = False
    deaths: int = 0  # of its engines, without a new token in between
    tokens: int = 0  # delivered before the latest of them
    held_since: float = 0.0  # seconds; of one that waits for an engine

    @property
    def engine(self) -> int:
        return self.route.engine

    @property
    def all_ended(self) -> bool:
        return len(self.ended) == self.request.width


class Placements:
    """Every open request has one engine, or is held until there is one."""

    def __init__(self, capacity: Capacity) -> None:
        self.open: dict[str, Placement] = {}
        self.held: dict[str, Placement] = {}  # of these, those that no engine has
        self.router = Router(capacity)
        self._rows = SequenceRows()

    # -- requests come and go -------------------------------------------------

    def begin(self, request: EncodedRequest) -> Placement:
        """A new request, which has no engine yet. Call `place` or `end`."""
        if self.router.compares:
            route = self.router.route(request.request())
        else:
            route = Route([], request.tokens, request.width)
        return Placement(self._rows.add(request), route)

    def choose(self, one: Placement, engines: Sequence[int]) -> int:
        """Where a request should go. It counts from `place` on."""
        return self.router.choose(one.route, engines)

    def place(self, one: Placement, engine: int) -> None:
        """The engine has the request now."""
        self.open[one.request.id] = one
        self.held.pop(one.request.id, None)
        self.router.place(one.route, engine)

    def hold(self, one: Placement, now: float) -> None:
        """No engine can have the request now. Call `place`, or `leave` and `end`."""
        one.held_since = now
        self.open[one.request.id] = self.held[one.request.id] = one

    def leave(self, one: Placement) -> None:
        """The engine does not have the request any more. Call `place`, `hold` or `end`."""
        del self.open[one.request.id]
        if self.held.pop(one.request.id, None) is None:
            self.router.leave(one.route)

    def end(self, one: Placement) -> None:
        """The request has ended, and no engine has it."""
        self._rows.release(one.request)

    def forget(self, one: Placement) -> None:
        """No engine has the request, and none will."""
        self.leave(one)
        self.end(one)

    def forget_held(self, before: float = inf) -> list[Placement]:
        """Forget the requests that have been held since a time; returns them."""
        found = [one for one in self.held.values() if one.held_since <= before]
        for one in found:
            self.forget(one)
        return found

    def leave_all(self, engine: int) -> list[Placement]:
        """The requests of an engine that died. Its cache is empty."""
        self.router.forget(engine)
        placed = [one for name, one in self.open.items() if name not in self.held]
        lost = [one for one in placed if one.engine == engine]
        for one in lost:
            self.leave(one)
        return lost

    def forget_prefixes(self) -> None:
        """The caches of all engines are empty."""
        for engine in range(len(self.router.loads)):
            self.router.forget(engine)

    # -- what was delivered ---------------------------------------------------

    def delivered(self, delivery: Delivery) -> Delivery:
        """Keep the tokens of requests, and forget those that ended; returns what the front ends
        get."""
        if len(delivery.handle):
            delivery = self._rows.delivered(delivery)
        for ended in delivery.ended:
            if (one := self.open.get(ended.request_id)) is None:
                continue
            if ended.child >= 0:
                one.ended.add(ended.child)
            else:
                self.forget(one)
        for refused in delivery.refused:
            if (one := self.open.get(refused.request_id)) is not None:
                self.forget(one)
        return delivery

    def died_under(self, one: Placement) -> int:
        """Count the death of its engine; returns how many it has seen without a new token."""
        tokens = sum(map(len, self._rows.tokens(one.request)))
        one.deaths = 1 if tokens > one.tokens else one.deaths + 1
        one.tokens = tokens
        return one.deaths

    def has_begun(self, one: Placement) -> bool:
        """Has a token of it been delivered?"""
        return any(self._rows.tokens(one.request))

    def continuation(self, one: Placement) -> EncodedRequest:
        """The request after the tokens that were delivered. RequestError if it has none to come.

        What a prefill engine kept for it may have been read, and can then not be read again.
        """
        tokens = self._rows.tokens(one.request)
        kept = (None if child in one.ended else ids for child, ids in enumerate(tokens))
        request = one.request.request()
        transfer, params = KVTransfer.of(request.kv_transfer_params), request.kv_transfer_params
        if transfer is not None and transfer.do_remote_prefill:
            params = None
        request = replace(request, generated=tuple(kept), kv_transfer_params=params)
        return EncodedRequest.of(request, one.request.parked)
