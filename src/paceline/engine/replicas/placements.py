"""Which of several engines has which request, and the columns of its sequences."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf

import numpy as np

from paceline.core.arrays import I64
from paceline.core.kv_transfer import KVTransfer
from paceline.core.request import Request
from paceline.engine.choice_rows import NOBODY, ROW, ChoiceRows, extended
from paceline.engine.loop.messages import Capacity, Delivery
from paceline.engine.replicas.router import Route, Router


class SequenceRows:
    """Engines report a sequence under a handle of ours, front ends know it under one of theirs.

    So a row is found without a search, and a delivery costs no Python for each of its rows.
    `_theirs` has the handle of the front end for each row.
    """

    def __init__(self) -> None:
        self._rows = ChoiceRows[None]()
        self._theirs: I64 = np.empty(0, np.int64)

    def add(self, request: Request) -> Request:
        """The request as an engine gets it."""
        width = request.width
        own = replace(request, handle=self._rows.next_handle(width))
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
        theirs[new.place] = self._theirs[new.row]
        return replace(delivery, handle=theirs)

    def tokens(self, own: Request) -> list[tuple[int, ...]]:
        """The tokens that each sequence of a request has so far."""
        first = own.handle & ROW
        return [tuple(self._rows.tokens.read(first + child)) for child in range(own.width)]

    def release(self, own: Request) -> None:
        """A request of `add` has ended."""
        self._rows.release(own.handle, own.width)


@dataclass(slots=True, eq=False)
class Placement:
    """A request, and the engine that it is submitted to."""

    request: Request
    parked: str
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

    def begin(self, request: Request, parked: str) -> Placement:
        """A new request, which has no engine yet. Call `place` or `end`."""
        return Placement(self._rows.add(request), parked, self.router.route(request))

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

    def continuation(self, one: Placement) -> Request:
        """The request after the tokens that were delivered. RequestError if it has none to come.

        What a prefill engine kept for it may have been read, and can then not be read again.
        """
        tokens = self._rows.tokens(one.request)
        kept = (None if child in one.ended else ids for child, ids in enumerate(tokens))
        transfer = KVTransfer.of(one.request.kv_transfer_params)
        params = one.request.kv_transfer_params
        if transfer is not None and transfer.do_remote_prefill:
            params = None
        return replace(one.request, generated=tuple(kept), kv_transfer_params=params)
