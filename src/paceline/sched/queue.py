"""Sequences that are not resident: waiting by rank, or parked by reason."""

import heapq
from collections import defaultdict, deque
from collections.abc import Hashable, Iterator
from itertools import chain, count
from math import inf
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from paceline.core.request import Sequence
from paceline.sched.plugin_checks import check_flow, check_flow_rank, check_rank
from paceline.sched.policy import Policy

Order = tuple[tuple[float, ...], int, tuple[float, ...], int]
T = TypeVar("T", bound=tuple[Any, ...])

# What the scheduler parks a request for.
SHARE_OF_SLOTS = "its share of slots (slots_for_others)"
REMOTE_KV = "remote_kv"  # it is being loaded


class Place(NamedTuple):
    """Where a sequence stands in its flow. Superseded, not moved, when its rank changes."""

    order: Order
    sequence: Sequence
    flow: Hashable


class Flow:
    """Waiting sequences that keep their relative order, such as those of one tenant.

    A place that comes in order, as nearly all do, is appended to a row; one that goes before the
    last of the row is pushed onto a heap.
    """

    def __init__(self) -> None:
        self._row: deque[Place] = deque()
        self._heap: list[tuple[Order, int, Place]] = []
        self._entries = count()  # so that two sequences are never compared

    def __len__(self) -> int:
        return len(self._row) + len(self._heap)

    def __iter__(self) -> Iterator[Place]:
        return chain(self._row, (place for _, _, place in self._heap))

    def in_order(self) -> Iterator[Place]:
        """From the first on; to read a few of very many takes little time."""
        heaped = (place for _, _, place in ascending(self._heap))
        return heapq.merge(self._row, heaped, key=attrgetter("order"))

    @property
    def first(self) -> Place:
        return self._heap[0][-1] if self._heap and self._is_heaped() else self._row[0]

    def push(self, place: Place) -> None:
        if not self._row or self._row[-1].order <= place.order:
            self._row.append(place)
        else:
            heapq.heappush(self._heap, (place.order, next(self._entries), place))

    def pop(self) -> None:
        """Remove the first."""
        if self._heap and self._is_heaped():
            heapq.heappop(self._heap)
        else:
            self._row.popleft()

    def _is_heaped(self) -> bool:
        """Is the first one on the heap, which is not empty?"""
        return not self._row or self._heap[0][0] < self._row[0].order


def ascending(heap: list[T]) -> Iterator[T]:
    """The items of a heap from the smallest on, without changing it."""
    front = [(heap[0], 0)] if heap else []
    while front:
        item, place = heapq.heappop(front)
        yield item
        for child in (2 * place + 1, 2 * place + 2):
            if child < len(heap):
                heapq.heappush(front, (heap[child], child))


REFRESHED_PER_STEP = 8  # ranks asked for again in each step, where a policy wants that


class WaitingQueue:
    """Finds the sequence to admit next, at a cost that does not grow with the number waiting.

    `_heads` is a heap over flows, keyed by what flow and head were when pushed; since both
    only get worse unless something is pushed anew, an entry that is still true when it
    reaches the top is the best of all. Superseded places and entries are dropped when they
    come to the top, or when they are many.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._places: dict[int, Place] = {}  # by serial: the one place that counts
        self._flows: defaultdict[Hashable, Flow] = defaultdict(Flow)
        self._heads: list[tuple[float, Order, int, Hashable]] = []
        self._entry: dict[Hashable, int] = {}  # by flow: the one entry of _heads that counts
        self._entries = count()
        self._front = 0  # falls with each preemption: the last one preempted stands first
        self._stands: dict[int, tuple[int, int]] = {}  # by serial: its front, and behind whom
        self._oldest: list[tuple[float, int]] = []  # by time of submission, for patience
        self._turn: deque[int] = deque()  # serials whose rank is asked for again
        self._asks_left = REFRESHED_PER_STEP  # further ranks that may be asked for in this step
        self._superseded = 0  # superseded entries, at most
        self._aside: dict[int, Place] = {}  # by serial: places to look past for now
        self._overtaken: dict[int, int] = {}  # by serial: admissions past it while it was aside
        self.parked: dict[int, Sequence] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence.serial in self._places or sequence.serial in self.parked

    # -- entering and leaving -------------------------------------------------

    def push(self, sequence: Sequence, in_front: bool = False) -> None:
        """Let a sequence wait; `in_front` puts it ahead of its equals."""
        serial = sequence.serial
        assert serial not in self._places, f"{sequence.id!r} waits already"
        if in_front:
            self._front -= 1
            self._stands[serial] = self._front, serial
        if self._policy.patience_s != inf:
            heapq.heappush(self._oldest, (sequence.queued_at, serial))
        if self._policy.refresh:
            self._turn.append(serial)
        self._place(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence, waiting or parked."""
        if self._places.pop(sequence.serial, None):
            self._count_superseded()
        self._stands.pop(sequence.serial, None)
        self._overtaken.pop(sequence.serial, None)
        self.parked.pop(sequence.serial, None)

    def park(self, sequence: Sequence, reason: str) -> None:
        """Set a sequence aside until `wake`; it blocks no other meanwhile."""
        stand = self._stands.get(sequence.serial)
        self.remove(sequence)
        if stand is not None:
            self._stands[sequence.serial] = stand
        sequence.parked = reason
        self.parked[sequence.serial] = sequence

    def wake(self, sequence: Sequence, behind: int | None = None) -> None:
        """Let a parked sequence wait again, where it would stand had it never been parked, or
        behind the one of another serial."""
        del self.parked[sequence.serial]
        if behind is not None:
            self._stands[sequence.serial] = 0, behind
        sequence.parked = ""
        self.push(sequence)

    def replace(self, sequence: Sequence, successor: Sequence) -> None:
        """Give a successor the place of a sequence, waiting or parked."""
        stand, reason = self._stands.get(sequence.serial), sequence.parked
        self.remove(sequence)
        if stand is not None:
            self._stands[successor.serial] = stand
        if reason:
            successor.parked = reason
            self.parked[successor.serial] = successor
        else:
            self.push(successor)

    # -- the head -----------------------------------------------------------

    def head(self, now: float) -> Sequence | None:
        """The sequence to admit next, except those that are set aside."""
        if len(self._places) == len(self._aside):
            return None
        return self.impatient(now) or self._best()

    def impatient(self, now: float) -> Sequence | None:
        """The oldest sequence, if it has waited longer than the policy lets it."""
        while self._oldest:
            since, serial = self._oldest[0]
            if serial not in self._places:
                heapq.heappop(self._oldest)
            elif now - since >= self._policy.patience_s:
                return self._places[serial].sequence
            else:
                break
        return None

    def set_aside(self, head: Sequence) -> None:
        """Look past the head, which keeps its place, until `put_back`."""
        place = self._places[head.serial]
        self._aside[head.serial] = place
        flow = self._flows[place.flow]
        assert flow.first is place, f"{head.id!r} is not at the head"
        flow.pop()

    def put_back(self) -> None:
        """Consider those again that were set aside, in their old places."""
        for serial, place in self._aside.items():
            if self._places.get(serial) is place:
                self._enlist(place)
        self._aside.clear()

    def overtake(self, sequence: Sequence) -> None:
        """Another sequence was admitted past one that is set aside."""
        self._overtaken[sequence.serial] = self.overtaken(sequence) + 1

    def overtaken(self, sequence: Sequence) -> int:
        """How many were admitted past a sequence since it began to wait."""
        return self._overtaken.get(sequence.serial, 0)

    def refresh(self) -> None:
        """Ask for the rank of a few sequences again, in turn. Once a step."""
        self._asks_left = REFRESHED_PER_STEP
        for _ in range(min(REFRESHED_PER_STEP, len(self._turn))):
            serial = self._turn.popleft()
            if place := self._places.get(serial):
                self._turn.append(serial)
                if self._order(place.sequence) != place.order:
                    self._place(place.sequence)

    def __iter__(self) -> Iterator[Sequence]:
        return (place.sequence for place in self._places.values())

    def in_order(self, now: float) -> list[Sequence]:
        """As they would be admitted if nothing changed: the aged first, then by rank."""

        aged: list[Sequence] = []
        others: list[Place] = []
        for place in self._places.values():
            if now - place.sequence.queued_at >= self._policy.patience_s:
                aged.append(place.sequence)
            else:
                others.append(place)
        aged.sort(key=lambda sequence: (sequence.queued_at, sequence.serial))
        others.sort(key=self._rank_of)
        return aged + [place.sequence for place in others]

    def first(self, most: int, now: float) -> list[Sequence]:
        """The first ones of `in_order`, without a look at all of them."""
        found: dict[int, Sequence] = {}  # by serial, in order
        for since, serial in ascending(self._oldest):
            if len(found) == most or now - since < self._policy.patience_s:
                break
            if serial in self._places:
                found[serial] = self._places[serial].sequence
        heads: list[tuple[float, Order, int, Iterator[Place]]] = []
        for flow in self._flows.values():
            places = filter(self._counts, flow.in_order())
            if head := next(places, None):
                rank = self._policy.flow_rank(head.flow)
                heads.append((rank, head.order, len(heads), chain([head], places)))
        best = [places for _, _, _, places in heapq.nsmallest(most, heads)]
        for place in heapq.merge(*best, key=self._rank_of):
            if len(found) == most:
                break
            found.setdefault(place.sequence.serial, place.sequence)
        return list(found.values())

    def _rank_of(self, place: Place) -> tuple[float, Order]:
        return self._policy.flow_rank(place.flow), place.order

    # -- places -------------------------------------------------------------

    def _order(self, sequence: Sequence) -> Order:
        rank = self._policy.rank(sequence)
        if type(rank) is not tuple or rank:
            check_rank(self._policy, sequence, rank)
        front, place = self._stands.get(sequence.serial, (0, sequence.serial))
        return rank[:1], front, rank[1:], place

    def _place(self, sequence: Sequence) -> None:
        flow = self._policy.flow(sequence)
        if flow is not None:
            check_flow(self._policy, sequence, flow)
        place = Place(self._order(sequence), sequence, flow)
        if sequence.serial in self._places:
            self._count_superseded()
        self._places[sequence.serial] = place
        self._enlist(place)

    def _enlist(self, place: Place) -> None:
        """Add a place to its flow."""
        flow = self._flows[place.flow]
        flow.push(place)
        if flow.first is place:
            self._push_head(place)

    def _counts(self, place: Place) -> bool:
        return self._places.get(place.sequence.serial) is place

    def _push_head(self, place: Place) -> None:
        rank, entry = self._policy.flow_rank(place.flow), next(self._entries)
        if type(rank) is not float or rank != rank:  # noqa: PLR0124 - it is NaN
            check_flow_rank(self._policy, place.flow, rank)
        self._entry[place.flow] = entry
        heapq.heappush(self._heads, (rank, place.order, entry, place.flow))

    def _best(self) -> Sequence:
        while True:
            rank, order, entry, flow = self._heads[0]
            place = self._head_of(flow) if self._entry.get(flow) == entry else None
            if place and place.order == order and self._policy.flow_rank(flow) == rank:
                return place.sequence
            heapq.heappop(self._heads)
            if place:
                self._push_head(place)
                if self._heads[0][2] == self._entry[flow]:
                    return place.sequence  # it was just found to be true

    def _head_of(self, flow: Hashable) -> Place | None:
        """The first place of a flow that still counts and whose rank is still true."""
        places = self._flows.get(flow)
        while places:
            place = places.first
            if not self._counts(place):
                places.pop()
                continue
            if not self._policy.refresh or not self._asks_left:
                return place  # if very many got worse at once, `refresh` finds the others
            order = self._order(place.sequence)
            if order <= place.order:
                return place
            self._asks_left -= 1
            places.pop()
            self._place_again(place, order)
        self._flows.pop(flow, None)
        return None

    def _place_again(self, place: Place, order: Order) -> None:
        again = Place(order, place.sequence, place.flow)
        self._places[place.sequence.serial] = again
        self._flows[place.flow].push(again)

    def _count_superseded(self) -> None:
        """An entry was superseded. Rebuild once such entries are most of all."""
        self._superseded += 1
        if self._superseded > 2 * len(self._places) + 64:
            self._superseded = 0
            self._rebuild()

    def _rebuild(self) -> None:
        """Build flows and heaps from the places that count."""
        self._flows, self._heads, self._entry = defaultdict(Flow), [], {}
        listed = [one for serial, one in self._places.items() if serial not in self._aside]
        for place in sorted(listed, key=attrgetter("order")):
            self._flows[place.flow].push(place)
        for flow in self._flows.values():
            self._push_head(flow.first)
        if self._oldest:
            waiting = self._places.items()
            self._oldest = [(place.sequence.queued_at, serial) for serial, place in waiting]
            heapq.heapify(self._oldest)
        self._turn = deque(dict.fromkeys(s for s in self._turn if s in self._places))

    def check(self) -> None:
        assert not self._aside, "a place is still set aside"
        assert self._overtaken.keys() <= self._places.keys()
        assert not self._places.keys() & self.parked.keys(), "waiting and parked at once"
        listed = {id(place) for flow in self._flows.values() for place in flow}
        for place in self._places.values():
            assert place.sequence.slot < 0 and place.sequence.finish is None
            assert id(place) in listed, "a place is lost"
        for sequence in self.parked.values():
            assert sequence.parked and sequence.slot < 0
