"""Shares of slots for HTTP bodies with many prompts, so that others need not wait for all."""

from collections import Counter, deque
from typing import Protocol

from paceline.core.events import Happened
from paceline.core.request import Request, Sequence
from paceline.sched.explain.journal import note
from paceline.sched.policy import Policy
from paceline.sched.queue import REMOTE_KV, SHARE_OF_SLOTS, WaitingQueue
from paceline.sched.slots import SlotTable


class QueueState(Protocol):
    """The part of the scheduler's state that `Bodies` reads."""

    step: int
    now: float
    table: SlotTable
    queue: WaitingQueue
    policy: Policy
    live: dict[str, Sequence]

    @property
    def waiting(self) -> int: ...


def wake(state: QueueState, sequence: Sequence, behind: int | None = None) -> None:
    """Put a parked sequence back into its old queue position, or right behind another serial."""
    note(sequence, Happened.WOKEN, state.now, state.step, cause=sequence.parked)
    state.policy.woken(sequence)
    state.queue.wake(sequence, behind)


class Bodies:
    """Parks requests of one origin beyond its share of slots.

    Requests of one body have the same origin. At most `slots_for_others` sequences of an origin,
    but at least one request, wait or run; further requests are parked. When one ends, the next
    parked one goes to the end of the queue. While no request waits and more than
    `slots_for_others` slots are vacant, further ones are unparked, one origin after the other. So
    an origin with parked requests always has some that wait or run.
    """

    def __init__(self, spared: int, state: QueueState) -> None:
        self.spared = spared  # slots; 0: nothing is parked
        self.latest = 0  # serial submitted
        self._state = state
        self._sequences: Counter[str] = Counter()  # by origin, of `_counted`
        self._counted: set[str] = set()  # ids of requests that wait or run
        self.parked: dict[str, deque[str]] = {}  # ids by origin; some may be woken

    def takes(self, request: Request) -> bool:
        """May a request wait? If so, it counts until `left`; if not, the caller parks it."""
        if not (self.spared and request.origin):
            return True
        used = self._sequences[request.origin]
        if used and used + request.width > self.spared:
            return False
        self._count(request)
        return True

    def counts(self, request: Request) -> bool:
        """Does a request count towards the share of its body?"""
        return request.id in self._counted

    def hold(self, request: Request) -> None:
        """Add a request that was parked because of others of its body."""
        self.parked.setdefault(request.origin, deque()).append(request.id)

    def left(self, request: Request) -> None:
        """A request ended or was parked: let the next ones of its body wait."""
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
        """Does no request wait, so that a parked one may join?"""
        state = self._state
        return bool(self.parked) and not state.waiting and state.table.vacant > self.spared

    def let_one_wait(self) -> None:
        """Wake the next parked request, beyond the share of its body."""
        for origin in list(self.parked):
            found = self._next(origin)
            if found is not None:
                self._count(found.request)
                self._release(found)
                if origin in self.parked:  # the other origins are next
                    self.parked[origin] = self.parked.pop(origin)
                return

    def _count(self, request: Request) -> None:
        self._sequences[request.origin] += request.width
        self._counted.add(request.id)

    def _next(self, origin: str) -> Sequence | None:
        """The first request of an origin that is still parked."""
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
