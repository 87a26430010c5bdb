"""Keeps the targets of as many requests as possible."""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import heappop, heappush
from math import exp, inf
from typing import NamedTuple

import numpy as np

from paceline.core.arrays import I32, Index
from paceline.core.errors import TOO_LATE
from paceline.core.request import Sequence
from paceline.core.settings.config import PolicyConfig
from paceline.sched.policy import Policy, View, within_budget
from paceline.sched.service.prompt_room import PromptRoom
from paceline.sched.service.step_model import StepLoad

TURN = 16  # of the work of others, requests that have waited long have one part
IDLE = 0.95  # share of the time without prompts in time, in which late requests are free
DELAY = 32  # otherwise their decodes may take one part in so many of a step
SURE = 0.9  # of the speed of prompts, with which due times are reckoned
BUSY_S = 4.0  # time over which the rest that prompts leave is measured
STRUCK = 8  # requests at most that are struck off in a step: so many ranks the queue computes
LOOKED_AT = 128  # requests that wait whose times are reckoned in a step

Listed = tuple[bool, float, int, int]  # is it late? due time, serial, row
RECENT_S = 8.0  # in which the use of a tenant fades to a third
FEW = 64  # tenants whose use is kept at least


class Unfinished(NamedTuple):
    """A prompt that can be in time."""

    due: float
    serial: int
    work: int  # positions to compute
    tenant: str


class TenantUse:
    """Positions of prompts that each tenant was given lately, divided by its weight."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights
        self._given: dict[str, tuple[float, float]] = {}  # positions, and when they were counted

    def of(self, tenant: str, now: float) -> float:
        given, then = self._given.get(tenant, (0.0, now))
        return given * exp((then - now) / RECENT_S)

    def add(self, tenant: str, positions: int, now: float) -> None:
        given = positions / self._weights.get(tenant, 1.0)
        self._given[tenant] = self.of(tenant, now) + given, now
        if len(self._given) > FEW:
            recent = {one: own for one, own in self._given.items() if now - own[1] < 4 * RECENT_S}
            if len(recent) <= len(self._given) // 2:
                self._given = recent


class DueList:
    """Requests that wait and can be in time, by due time; and the serials of open ones that
    cannot.

    Moore and Hodgson's rule says which: go through the list by due time, and where one would be
    late, strike off the longest so far, of the tenant that has most. With one tenant, the fewest
    requests are late.

        due        a ▏   b  ▏  c▏       d ▏
        computed   ▆a▆▆▆▆▆b▆▆▆▆▆▆▆▆c▆▆          c would be late, and b is the longest
                   ▆a▆▆▆c▆▆▆d▆▆▆▆b▆▆▆▆
    """

    def __init__(self, due: Callable[[Sequence], float], weights: Mapping[str, float]) -> None:
        self.late: set[int] = set()
        self.use = TenantUse(weights)
        self._due, self._weights = due, weights
        self._order: list[tuple[float, int]] = []  # due times and serials
        self._waiting: dict[int, Sequence] = {}  # by serial
        self._work: dict[int, int] = {}  # positions to compute, by serial
        self._struck: list[Sequence] = []  # became late since they were last taken

    def __len__(self) -> int:
        return len(self._order)

    def add(self, sequence: Sequence, work: int) -> None:
        """List a request, or change its work."""
        if sequence.serial in self.late:
            return
        if sequence.serial not in self._waiting:
            self._waiting[sequence.serial] = sequence
            insort(self._order, (self._due(sequence), sequence.serial))
        self._work[sequence.serial] = work

    def change(self, sequence: Sequence, work: Callable[[Sequence], int]) -> None:
        """Look up the work of a request again, if it is listed."""
        if sequence.serial in self._waiting:
            self._work[sequence.serial] = work(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Take a request off the list: it is resident or parked, or ended."""
        if self._waiting.pop(sequence.serial, None) is not None:
            del self._work[sequence.serial]
            del self._order[bisect_left(self._order, (self._due(sequence), sequence.serial))]

    def first(self) -> list[Unfinished]:
        """The requests that are due first."""
        return [
            Unfinished(due, one, self._work[one], tenant_of(self._waiting[one]))
            for due, one in self._order[:LOOKED_AT]
        ]

    def strike(self, prompts: Iterable[Unfinished], now: float, begin: float, speed: float) -> None:
        """Strike off those that cannot be in time, among these and the listed ones, if `speed`
        positions a second are computed from `begin` on."""
        listed = sorted([*prompts, *self.first()])
        ends = begin + np.cumsum([one.work for one in listed]) / speed
        if (ends <= [one.due for one in listed]).all():
            return
        end, longest = begin, dict[str, list[tuple[int, int]]]()  # by tenant
        used = {one.tenant: self.use.of(one.tenant, now) for one in listed}
        for _, _, work, tenant in listed:
            used[tenant] += work / self._weights.get(tenant, 1.0)
        for due, serial, work, tenant in listed:
            end += work / speed
            heappush(longest.setdefault(tenant, []), (-work, serial))
            while end > due and longest and len(self._struck) < STRUCK:
                most = max(longest, key=used.__getitem__)
                less, struck = heappop(longest[most])
                end += less / speed
                used[most] += less / self._weights.get(most, 1.0)
                if not longest[most]:
                    del longest[most]
                self._give_up(struck)

    def _give_up(self, serial: int) -> None:
        self.late.add(serial)
        if (sequence := self._waiting.get(serial)) is not None:
            self.remove(sequence)
            self._struck.append(sequence)

    def struck(self) -> list[Sequence]:
        """Requests that became late while they waited, since the previous call."""
        struck, self._struck = self._struck, []
        return struck


def tenant_of(sequence: Sequence) -> str:
    """Without a tenant, requests with the same adapter belong together."""
    return sequence.request.tenant or sequence.request.adapter or ""


class Rest:
    """How much of the time the prompts that are in time leave."""

    def __init__(self) -> None:
        self._busy = 0.0  # share of the time that they need
        self._busy_until = self._seen_at = 0.0

    @property
    def share(self) -> float:
        return 1.0 - self._busy

    def seen(self, now: float, step_s: float) -> None:
        """A step is planned that takes so long, with prompts that are in time; 0: it has none."""
        span = now - self._seen_at
        if span > 0.0:
            busy = max(min(self._busy_until, now) - self._seen_at, 0.0)
            kept = max(1.0 - span / BUSY_S, 0.0)
            self._busy = kept * self._busy + (1.0 - kept) * busy / span
            self._seen_at = now
        if step_s:
            self._busy_until = now + step_s


class Slo(Policy):
    """Steps take as long as the pace of those who run allows. Prompts are computed by their due
    times, and those that can no longer be in time go behind all that can.

    Beside all who decode, a step has as many positions of prompts as fit into it by the learned
    step times (`PromptRoom`). A request without a target is due after `default_deadline_s`.

    While prompts are in time, late ones are admitted one by one, as long as the decodes of late
    requests delay a step by at most one part in `DELAY`. A request that waited `ageing_s` goes
    first, as long as one part in `TURN` of the admitted positions is of such requests, and has one
    part in `TURN` of the positions of each step. So none starves: once it has aged, a request waits
    at most until `TURN` times the prompts of those that aged before it were admitted.
    """

    refresh = True  # requests become late, and the cache fills
    learns = True
    too_late = TOO_LATE

    def __init__(self, config: PolicyConfig, view: View) -> None:
        super().__init__(config, view)
        self._list = DueList(self.due, config.tenant_weights)
        self._rest = Rest()
        self._credit = 0.0  # positions that an aged request may have; below 0: it must wait
        self._room = PromptRoom(view)
        self._spare = 0  # further slots that late requests may have

    @property
    def patience_s(self) -> float:
        return self.config.ageing_s if self._credit >= 0.0 else inf

    def due(self, sequence: Sequence) -> float:
        """When its first token is due."""
        target_s = self.view.promises.ttft_s(sequence)
        return sequence.arrival + (target_s if target_s < inf else self.config.default_deadline_s)

    # -- the questions ------------------------------------------------------

    def rank(self, sequence: Sequence) -> tuple[float, ...]:
        self._list.change(sequence, self.view.uncached)
        return (float(sequence.serial in self._list.late), self.due(sequence))

    def victim(self) -> int:
        """One that is late, or else the one with the most slack."""
        table, order = self.view.table, self.view.table.order
        residents = [table.sequence(slot) for slot in order.tolist()]
        slack = [inf if self._is_late(one) else self.due(one) for one in residents]
        return self.pick(order[[one == max(slack) for one in slack]])

    def share(self, slot: Index, want: I32, budget: int) -> I32:
        """Decodes first, then prompts by due time; late prompts get a part of what is left."""
        self._prepare(budget)
        room = self._room
        if not (rows := room.prompts(slot, want)):
            return within_budget(want, budget)
        listed = sorted(self._listed(row, int(slot[row])) for row in rows)
        late = [row for is_late, _, _, row in listed if is_late]
        in_time = [row for is_late, _, _, row in listed if not is_late]
        aged = sum(int(want[row]) for row in late if self._has_aged(int(slot[row])))
        spared = min(-(-room.positions // TURN), aged)
        return room.share(slot, want, budget, in_time, late, spared)

    def _has_aged(self, slot: int) -> bool:
        arrival = self.view.table.sequence(slot).arrival
        return self.view.now - arrival >= self.config.ageing_s

    def _listed(self, row: int, slot: int) -> Listed:
        sequence = self.view.table.sequence(slot)
        return self._is_late(sequence), self.due(sequence), sequence.serial, row

    def room(self, sequence: Sequence, rest: int, taken: int, left: int) -> int:
        self._prepare(taken + left)
        if taken and self._spare < 1 and self._is_late(sequence) and not self.impatient(sequence):
            return 0
        return self._room.of_arrival(sequence, rest, taken, left)

    def late(self, now: float) -> Iterator[Sequence]:
        """Requests that cannot be in time, if they are to be refused."""
        if self._room.budget:
            self._prepare(self._room.budget)
        self._strike()
        struck = self._list.struck()
        if self.config.refuse_late:
            yield from (one for one in struck if one.finish is None and not one.started)

    # -- time ---------------------------------------------------------------

    def _prepare(self, budget: int) -> None:
        """Once in each step: how much of it prompts have."""
        if not self._room.prepare(budget):
            return
        table = self.view.table
        is_busy = bool(len(self._list) or self._prompts())
        self._rest.seen(self.view.now, self._room.seconds if is_busy else 0.0)
        late = [slot for slot in table.order.tolist() if self._is_late(table.sequence(slot))]
        if self._rest.share >= IDLE:
            self._spare = table.capacity
        else:
            begun = any(table.planned[slot] < table.given[slot] for slot in late)
            self._spare = int(not begun and self._delay_s(late) <= self._room.most_s / DELAY)

    def _delay_s(self, late: list[int]) -> float:
        """How much longer a step takes because of decodes of late requests."""
        table, decodes = self.view.table, self._room.decodes
        rows = [slot for slot in late if table.planned[slot] >= table.given[slot]]
        reads = int(table.planned[rows].sum(dtype=np.int64)) + len(rows)
        rest = decodes.rows - len(rows)
        others = StepLoad(rest, rest, decodes.reads - reads)
        return self.view.times.seconds(decodes) - self.view.times.seconds(others)

    def _strike(self) -> None:
        """Find out which requests are late."""
        prompts, room = self._prompts(), self._room
        step_s = room.seconds
        if not (prompts or len(self._list)) or not step_s or not room.positions:
            return
        begin = self.view.now + self.view.times.seconds(room.decodes) + step_s
        speed = SURE * room.positions / step_s
        self._list.strike(prompts, self.view.now, begin, speed)

    def _prompts(self) -> list[Unfinished]:
        """The prompts of residents that are in time so far."""
        table, order = self.view.table, self.view.table.order
        found: list[Unfinished] = []
        for slot in order[table.planned[order] < table.prompt[order]].tolist():
            sequence = table.sequence(slot)
            if not self._is_late(sequence) and table.given[slot] == table.prompt[slot]:
                rest = int(table.given[slot] - table.planned[slot])
                due, tenant = self.due(sequence), tenant_of(sequence)
                found.append(Unfinished(due, sequence.serial, rest, tenant))
        return found

    def _is_late(self, sequence: Sequence) -> bool:
        return sequence.serial in self._list.late or self.view.promises.is_lost(sequence)

    # -- events -------------------------------------------------------------

    def joined(self, sequence: Sequence) -> None:
        self._list.add(sequence, self.view.uncached(sequence))

    def woken(self, sequence: Sequence) -> None:
        if not sequence.started:
            self.joined(sequence)

    def parked(self, sequence: Sequence) -> None:
        self._list.remove(sequence)

    def left(self, sequence: Sequence) -> None:
        self._list.remove(sequence)
        self._list.late.discard(sequence.serial)

    def admitted(self, sequence: Sequence, uncached: int) -> None:
        self._list.remove(sequence)
        self._list.use.add(tenant_of(sequence), uncached, self.view.now)
        self._spare -= self._is_late(sequence)
        if sequence.preemptions:
            return
        if self.view.now - sequence.queued_at >= self.config.ageing_s:
            self._credit -= uncached
        else:
            self._credit = min(self._credit + uncached / TURN, 0.0)
