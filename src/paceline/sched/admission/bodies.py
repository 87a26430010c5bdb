"""Bodies of several prompts, of which others need not wait for all."""

from collections import Counter, deque
from typing import Protocol

from paceline.core.events import Happened
from paceline.core.request import Request, Sequence
from paceline.sched.explain.journal import note
from paceline.sched.policy import Policy
from paceline.sched.queue import REMOTE_KV, SHARE_OF_SLOTS, WaitingQueue
from paceline.sched.slots import SlotTable


class Places(Protocol):
    """Where requests are, as far as their bodies depend on it."""

    step: int
    now: float
    table: SlotTable
    queue: WaitingQueue
    policy: Policy
    live: dict[str, Sequence]

    @property
    def waiting(self) -> int: ...


def wake(places: Places, sequence: Sequence, behind: int | None = None) -> None:
    """Let a parked sequence wait again, in its old place or behind the one of another serial."""
    note(sequence, Happened.WOKEN, places.now, places.step, cause=sequence.parked)
    places.policy.woken(sequence)
    places.queue.wake(sequence, behind)


class Bodies:
    """Parks requests of one origin beyond its share of slots.

    Requests that came in one body have the same origin. Of each origin, requests of at most
    `slots_for_others` sequences, one request at least, wait and run as any others do. When one of
    them ends, the next one that is parked goes to the end of the queue. When no request waits and
    more than `slots_for_others` slots are vacant, further ones are woken, an origin in turn. So
    every origin has requests that wait or run as long as any are parked.
    """

    def __init__(self, spared: int, state: Places) -> None:
        self.spared = spared  # slots; 0: nothing is parked
        self.latest = 0  # serial of all that were submitted
        self._state = state
        self._sequences: Counter[str] = Counter()  # by origin, of the requests in `_counted`
        self._counted: set[str] = set()  # ids of those that wait or run
        self.parked: dict[str, deque[str]] = {}  # ids by origin; some have left, or are woken

    def takes(self, request: Request) -> bool:
        """May a request wait? Then it counts until `left`; otherwise it is to be parked."""
        if not (self.spared and request.origin):
            return True
        used = self._sequences[request.origin]
        if used and used + request.width > self.spared:
            return False
        self._count(request)
        return True

    def counts(self, request: Request) -> bool:
        """Does a request count already, since its KV is being loaded?"""
        return request.id in self._counted

    def hold(self, request: Request) -> None:
        """A request was parked, because of others of its body."""
        self.parked.setdefault(request.origin, deque()).append(request.id)

    def left(self, request: Request) -> None:
        """A request has ended or is parked: another one of its body may wait."""
        if request.id not in self._counted:
            return
        origin = request.origin
        self._counted.remove(request.id)
        self._sequences[origin] -= request.width
        if not self._sequences[origin]:
            del self._sequences[origin]
        while (found := self._next(origin)) and self.takes(found.request):
            self._release(found)

    @property
    def may_join(self) -> bool:
        """May one that is parked join, since none waits?"""
        state = self._state
        return bool(self.parked) and not state.waiting and state.table.vacant > self.spared

    def let_one_wait(self) -> None:
        """Wake the next one, beyond the share of its body."""
        for origin in list(self.parked):
            found = self._next(origin)
            if found is not None:
                self._count(found.request)
                self._release(found)
                if origin in self.parked:  # the other origins come first now
                    self.parked[origin] = self.parked.pop(origin)
                return

    def _count(self, request: Request) -> None:
        self._sequences[request.origin] += request.width
        self._counted.add(request.id)

    def _next(self, origin: str) -> Sequence | None:
        """The first one of an origin that is still parked."""
        ids = self.parked.get(origin)
        while ids:
            found = self._state.live.get(ids[0])
            if (
                found is not None
                and found.parked == SHARE_OF_SLOTS
                and found.request.origin == origin
            ):
                return found
            ids.popleft()
        self.parked.pop(origin, None)
        return None

    def _release(self, sequence: Sequence) -> None:
        ids = self.parked[sequence.request.origin]
        ids.popleft()
        if not ids:
            del self.parked[sequence.request.origin]
        wake(self._state, sequence, behind=self.latest)

    def check(self) -> None:
        live, sequences = self._state.live, Counter[str]()
        for one in live.values():
            waits = not one.parked or one.parked == REMOTE_KV
            is_counted = bool(self.spared and one.request.origin and waits)
            assert is_counted == (one.id in self._counted), f"{one.id!r} is counted wrongly"
            if is_counted:
                sequences[one.request.origin] += one.request.width
            if one.parked == SHARE_OF_SLOTS:
                assert one.id in self.parked[one.request.origin], f"{one.id!r} is never woken"
        assert self._counted <= live.keys()
        assert sequences == self._sequences
        held = {one.request.origin for one in live.values() if one.parked == SHARE_OF_SLOTS}
        assert held <= sequences.keys(), "all of a body are parked"
