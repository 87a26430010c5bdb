"""Which of several engines has which request, and which one gets the next."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from paceline.core.kv_transfer import KVTransfer
from paceline.core.request import Request
from paceline.engine.core.messages import Capacity, Delivery
from paceline.engine.core.router import Route, Router
from paceline.engine.core.sequence_rows import SequenceRows


@dataclass(slots=True, eq=False)
class Placement:
    """A request, and the engine that it is submitted to."""

    request: Request
    parked: str
    route: Route
    ended: set[int] = field(default_factory=set[int])  # of its sequences, or aborted
    aborted: bool = False
    moved: bool = False  # from an engine that died

    @property
    def engine(self) -> int:
        return self.route.engine

    @property
    def all_ended(self) -> bool:
        return len(self.ended) == self.request.width


class Placements:
    """Every open request has one engine."""

    def __init__(self, capacity: Capacity) -> None:
        self.open: dict[str, Placement] = {}
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
        self.router.place(one.route, engine)

    def leave(self, one: Placement) -> None:
        """The engine does not have the request any more. Call `place` or `end`."""
        del self.open[one.request.id]
        self.router.leave(one.route)

    def end(self, one: Placement) -> None:
        """The request has ended, and no engine has it."""
        self._rows.release(one.request)

    def leave_all(self, engine: int) -> list[Placement]:
        """The requests of an engine that died. Its cache is empty."""
        self.router.forget(engine)
        lost = [one for one in self.open.values() if one.engine == engine]
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
                self.leave(one)
                self.end(one)
        for refused in delivery.refused:
            if (one := self.open.get(refused.request_id)) is not None:
                self.leave(one)
                self.end(one)
        return delivery

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
