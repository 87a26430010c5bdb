"""The queue of sequences that wait or are parked."""

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

# Reasons for which the scheduler parks a request.
SHARE_OF_SLOTS = "its share of slots (slots_for_others)"
REMOTE_KV = "remote_kv"  # its KV is being loaded


class QueuePosition(NamedTuple):
    """The position of a sequence in its flow. A new rank supersedes it by a new one."""

    order: Order
    sequence: Sequence
    flow: Hashable


class Flow:
    """Waiting sequences that keep their relative order, such as those of one tenant.

    Positions that come in order, as nearly all do, are appended to a deque; the others are pushed
    onto a heap.
    """

    def __init__(self) -> None:
        self._row: deque[QueuePosition] = deque()
        self._heap: list[tuple[Order, int, QueuePosition]] = []
        self._entries = count()  # break ties, so that sequences are never compared

    def __len__(self) -> int:
        return len(self._row) + len(self._heap)

    def __iter__(self) -> Iterator[QueuePosition]:
        return chain(self._row, (position for _, _, position in self._heap))

    def in_order(self) -> Iterator[QueuePosition]:
        """Positions in order; reading the first few of many is fast."""
        heaped = (position for _, _, position in ascending(self._heap))
        return heapq.merge(self._row, heaped, key=attrgetter("order"))

    @property
    def first(self) -> QueuePosition:
        return self._heap[0][-1] if self._heap and self._is_heaped() else self._row[0]

    def push(self, position: QueuePosition) -> None:
        if not self._row or self._row[-1].order <= position.order:
            self._row.append(position)
        else:
            heapq.heappush(self._heap, (position.order, next(self._entries), position))

    def pop(self) -> None:
        """Remove the first position."""
        if self._heap and self._is_heaped():
            heapq.heappop(self._heap)
        else:
            self._row.popleft()

    def _is_heaped(self) -> bool:
        """Is the first position on the heap? The heap must not be empty."""
        return not self._row or self._heap[0][0] < self._row[0].order


def ascending(heap: list[T]) -> Iterator[T]:
    """The entries of a heap in ascending order, without changing it."""
    front = [(heap[0], 0)] if heap else []
    while front:
        smallest, index = heapq.heappop(front)
        yield smallest
        for child in (2 * index + 1, 2 * index + 2):
            if child < len(heap):
                heapq.heappush(front, (heap[child], child))


REFRESHED_PER_STEP = 8  # ranks recomputed in each step, if the policy has `refresh`


class WaitingQueue:
    """Finds the sequence to admit next, at a cost independent of the number that wait.

    `_heads` is a heap over flows, keyed by the ranks of flow and head when pushed. Ranks only get
    worse unless something is pushed anew, so an entry at the top whose ranks have not changed is
    the best of all. Superseded positions and entries are dropped when they reach the top, or when
    there are many.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._positions: dict[int, QueuePosition] = {}  # by serial: the valid position
        self._flows: defaultdict[Hashable, Flow] = defaultdict(Flow)
        self._heads: list[tuple[float, Order, int, Hashable]] = []
        self._entry: dict[Hashable, int] = {}  # by flow: its valid entry in _heads
        self._entries = count()
        self._front = 0  # decreases with each preemption: the last one preempted goes first
        self._overrides: dict[int, tuple[int, int]] = {}  # by serial: front, serial
        self._oldest: list[tuple[float, int]] = []  # by time of submission, for patience
        self._turn: deque[int] = deque()  # serials whose ranks are recomputed in turn
        self._asks_left = REFRESHED_PER_STEP  # further ranks that may be recomputed in this step
        self._superseded = 0  # upper bound of superseded positions
        self._aside: dict[int, QueuePosition] = {}  # by serial: positions to skip for now
        self._overtaken: dict[int, int] = {}  # by serial: admissions past it while set aside
        self.parked: dict[int, Sequence] = {}

    def __len__(self) -> int:
        return len(self._positions)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence.serial in self._positions or sequence.serial in self.parked

    # -- entering and leaving -------------------------------------------------

    def push(self, sequence: Sequence, in_front: bool = False) -> None:
        """Add a sequence; `in_front` puts it ahead of others of the same rank."""
        serial = sequence.serial
        assert serial not in self._positions, f"{sequence.id!r} waits already"
        if in_front:
            self._front -= 1
            self._overrides[serial] = self._front, serial
        if self._policy.patience_s != inf:
            heapq.heappush(self._oldest, (sequence.queued_at, serial))
        if self._policy.refresh:
            self._turn.append(serial)
        self._insert(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence, waiting or parked."""
        if self._positions.pop(sequence.serial, None):
            self._count_superseded()
        self._overrides.pop(sequence.serial, None)
        self._overtaken.pop(sequence.serial, None)
        self.parked.pop(sequence.serial, None)

    def park(self, sequence: Sequence, reason: str) -> None:
        """Take a sequence out of the queue until `wake`."""
        override = self._overrides.get(sequence.serial)
        self.remove(sequence)
        if override is not None:
            self._overrides[sequence.serial] = override
        sequence.parked = reason
        self.parked[sequence.serial] = sequence

    def wake(self, sequence: Sequence, behind: int | None = None) -> None:
        """Put a parked sequence back into its old position, or right behind another one, given by
        serial."""
        del self.parked[sequence.serial]
        if behind is not None:
            self._overrides[sequence.serial] = 0, behind
        sequence.parked = ""
        self.push(sequence)

    def replace(self, sequence: Sequence, successor: Sequence) -> None:
        """Put a successor into the position of a sequence, waiting or parked."""
        override, reason = self._overrides.get(sequence.serial), sequence.parked
        self.remove(sequence)
        if override is not None:
            self._overrides[successor.serial] = override
        if reason:
            successor.parked = reason
            self.parked[successor.serial] = successor
        else:
            self.push(successor)

    # -- the head -----------------------------------------------------------

    def head(self, now: float) -> Sequence | None:
        """The sequence to admit next, except for those that are set aside."""
        if len(self._positions) == len(self._aside):
            return None
        return self.impatient(now) or self._best()

    def impatient(self, now: float) -> Sequence | None:
        """The oldest sequence, if it has waited longer than the policy's patience."""
        while self._oldest:
            since, serial = self._oldest[0]
            if serial not in self._positions:
                heapq.heappop(self._oldest)
            elif now - since >= self._policy.patience_s:
                return self._positions[serial].sequence
            else:
                break
        return None

    def set_aside(self, head: Sequence) -> None:
        """Skip the head until `put_back`; it keeps its position."""
        position = self._positions[head.serial]
        self._aside[head.serial] = position
        flow = self._flows[position.flow]
        assert flow.first is position, f"{head.id!r} is not at the head"
        flow.pop()

    def put_back(self) -> None:
        """Put sequences that were set aside back into their positions."""
        for serial, position in self._aside.items():
            if self._positions.get(serial) is position:
                self._enlist(position)
        self._aside.clear()

    def overtake(self, sequence: Sequence) -> None:
        """Count an admission past a sequence that is set aside."""
        self._overtaken[sequence.serial] = self.overtaken(sequence) + 1

    def overtaken(self, sequence: Sequence) -> int:
        """Admissions past a sequence since it began to wait."""
        return self._overtaken.get(sequence.serial, 0)

    def refresh(self) -> None:
        """Recompute the ranks of a few sequences, in turn. Called once per step."""
        self._asks_left = REFRESHED_PER_STEP
        for _ in range(min(REFRESHED_PER_STEP, len(self._turn))):
            serial = self._turn.popleft()
            if position := self._positions.get(serial):
                self._turn.append(serial)
                if self._order(position.sequence) != position.order:
                    self._insert(position.sequence)

    def __iter__(self) -> Iterator[Sequence]:
        return (position.sequence for position in self._positions.values())

    def in_order(self, now: float) -> list[Sequence]:
        """Sequences in the order of admission: those out of patience first, then by rank."""

        aged: list[Sequence] = []
        others: list[QueuePosition] = []
        for position in self._positions.values():
            if now - position.sequence.queued_at >= self._policy.patience_s:
                aged.append(position.sequence)
            else:
                others.append(position)
        aged.sort(key=lambda sequence: (sequence.queued_at, sequence.serial))
        others.sort(key=self._rank_of)
        return aged + [position.sequence for position in others]

    def first(self, most: int, now: float) -> list[Sequence]:
        """The first `most` sequences of `in_order`, without sorting all."""
        found: dict[int, Sequence] = {}  # by serial, in order
        for since, serial in ascending(self._oldest):
            if len(found) == most or now - since < self._policy.patience_s:
                break
            if serial in self._positions:
                found[serial] = self._positions[serial].sequence
        heads: list[tuple[float, Order, int, Iterator[QueuePosition]]] = []
        for flow in self._flows.values():
            positions = filter(self._counts, flow.in_order())
            if head := next(positions, None):
                rank = self._policy.flow_rank(head.flow)
                heads.append((rank, head.order, len(heads), chain([head], positions)))
        best = [positions for _, _, _, positions in heapq.nsmallest(most, heads)]
        for position in heapq.merge(*best, key=self._rank_of):
            if len(found) == most:
                break
            found.setdefault(position.sequence.serial, position.sequence)
        return list(found.values())

    def _rank_of(self, position: QueuePosition) -> tuple[float, Order]:
        return self._policy.flow_rank(position.flow), position.order

    # -- positions ----------------------------------------------------------

    def _order(self, sequence: Sequence) -> Order:
        rank = self._policy.rank(sequence)
        if type(rank) is not tuple or rank:
            check_rank(self._policy, sequence, rank)
        front, behind = self._overrides.get(sequence.serial, (0, sequence.serial))
        return rank[:1], front, rank[1:], behind

    def _insert(self, sequence: Sequence) -> None:
        flow = self._policy.flow(sequence)
        if flow is not None:
            check_flow(self._policy, sequence, flow)
        position = QueuePosition(self._order(sequence), sequence, flow)
        if sequence.serial in self._positions:
            self._count_superseded()
        self._positions[sequence.serial] = position
        self._enlist(position)

    def _enlist(self, position: QueuePosition) -> None:
        """Push a position onto its flow."""
        flow = self._flows[position.flow]
        flow.push(position)
        if flow.first is position:
            self._push_head(position)

    def _counts(self, position: QueuePosition) -> bool:
        return self._positions.get(position.sequence.serial) is position

    def _push_head(self, position: QueuePosition) -> None:
        rank, entry = self._policy.flow_rank(position.flow), next(self._entries)
        if type(rank) is not float or rank != rank:  # noqa: PLR0124 - it is NaN
            check_flow_rank(self._policy, position.flow, rank)
        self._entry[position.flow] = entry
        heapq.heappush(self._heads, (rank, position.order, entry, position.flow))

    def _best(self) -> Sequence:
        while True:
            rank, order, entry, flow = self._heads[0]
            position = self._head_of(flow) if self._entry.get(flow) == entry else None
            if position and position.order == order and self._policy.flow_rank(flow) == rank:
                return position.sequence
            heapq.heappop(self._heads)
            if position:
                self._push_head(position)
                if self._heads[0][2] == self._entry[flow]:
                    return position.sequence  # its ranks are current

    def _head_of(self, flow: Hashable) -> QueuePosition | None:
        """The first valid position of a flow whose rank is current."""
        positions = self._flows.get(flow)
        while positions:
            position = positions.first
            if not self._counts(position):
                positions.pop()
                continue
            if not self._policy.refresh or not self._asks_left:
                return position  # `refresh` finds the others in later steps
            order = self._order(position.sequence)
            if order <= position.order:
                return position
            self._asks_left -= 1
            positions.pop()
            self._reinsert(position, order)
        self._flows.pop(flow, None)
        return None

    def _reinsert(self, position: QueuePosition, order: Order) -> None:
        again = QueuePosition(order, position.sequence, position.flow)
        self._positions[position.sequence.serial] = again
        self._flows[position.flow].push(again)

    def _count_superseded(self) -> None:
        """Count a superseded position, and rebuild once most are."""
        self._superseded += 1
        if self._superseded > 2 * len(self._positions) + 64:
            self._superseded = 0
            self._rebuild()

    def _rebuild(self) -> None:
        """Build flows and heaps from the valid positions."""
        self._flows, self._heads, self._entry = defaultdict(Flow), [], {}
        listed = [one for serial, one in self._positions.items() if serial not in self._aside]
        for position in sorted(listed, key=attrgetter("order")):
            self._flows[position.flow].push(position)
        for flow in self._flows.values():
            self._push_head(flow.first)
        if self._oldest:
            waiting = self._positions.items()
            self._oldest = [(position.sequence.queued_at, serial) for serial, position in waiting]
            heapq.heapify(self._oldest)
        self._turn = deque(dict.fromkeys(s for s in self._turn if s in self._positions))

    def check(self) -> None:
        assert not self._aside, "a position is still set aside"
        assert self._overtaken.keys() <= self._positions.keys()
        assert not self._positions.keys() & self.parked.keys(), "waiting and parked at once"
        listed = {id(position) for flow in self._flows.values() for position in flow}
        for position in self._positions.values():
            assert position.sequence.slot < 0 and position.sequence.finish is None
            assert id(position) in listed, "a position is lost"
        for sequence in self.parked.values():
            assert sequence.parked and sequence.slot < 0
