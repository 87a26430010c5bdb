"""Keeps the targets of as many requests as possible."""

from bisect import insort
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
from paceline.sched.service.step_model import StepLoad

MARGIN = 0.97  # of the pace, which a step may take
ROOMY = 1.2  # times a step of one row, which a pace must allow to count
LEAST = 64  # prompts get at least this fraction of the budget of a step: 1 / LEAST
IN_STEPS = 4  # a prompt that just arrived and fits into a step has so many steps' time
TURN = 16  # of the work of others, late and aged requests have one part
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


class Use:
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
        self.use = Use(weights)
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
            self._order.remove((self._due(sequence), sequence.serial))

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

    The pace is the shortest target between two tokens among residents that still meet theirs, and
    at most a part in `IN_STEPS` of the shortest target of a first token, since an arrival waits for
    the step that runs. Targets that a request alone would miss do not count. Beside all who decode,
    a step has as many positions of prompts as fit into it by the learned step times. A request
    without a target is due after `default_deadline_s`.

    Late requests have the slots and the time that the others leave. A request that waited
    `ageing_s` goes first, as long as one part in `TURN` of the admitted positions is of such
    requests, and late prompts have one part in `TURN` of the positions of each step. So none
    starves: once it has aged, a request waits at most until `TURN` times the prompts of those that
    aged before it were admitted.
    """

    refresh = True  # requests become late, and the cache fills
    learns = True
    too_late = TOO_LATE

    def __init__(self, config: PolicyConfig, view: View) -> None:
        super().__init__(config, view)
        self._list = DueList(self.due, config.tenant_weights)
        self._rest = Rest()
        self._credit = 0.0  # positions that an aged request may have; below 0: it must wait
        self._step = -1  # of the following
        self._decodes = StepLoad()
        self._most_s = inf  # of the step
        self._room = 0  # positions for prompts; 0: no step was planned
        self._pairs = 0  # of the prompts in it so far
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
        table = self.view.table
        behind = np.flatnonzero((table.planned[slot] < table.given[slot]) & (want > 1))
        if not len(behind):
            return within_budget(want, budget)
        granted = want.copy()
        granted[behind] = 0
        granted = within_budget(granted, budget)
        left = min(max(self._room, 1), budget - int(granted.sum()))
        listed = sorted(self._listed(row, int(slot[row])) for row in behind.tolist())
        spared = min(-(-left // TURN), sum(int(want[row]) for row in self._aged(slot, listed)))
        load = self._decodes
        floor = max(budget // LEAST, 1)  # positions that prompts get in any case
        for is_late, _, _, row in listed:
            most = max(min(int(want[row]), left if is_late else left - spared), 0)
            start = int(table.planned[slot[row]])
            fits = self.view.times.fitting(load, most, self._most_s, start) if most else 0
            granted[row] = count = min(max(fits, floor), most)
            left, floor = left - count, max(floor - count, 0)
            load = load.with_prompt(count, start) if count else load
        self._pairs = load.pairs
        return granted

    def _aged(self, slot: Index, listed: list[Listed]) -> list[int]:
        """The rows of late requests that have waited long."""
        now, table, most_s = self.view.now, self.view.table, self.config.ageing_s
        return [
            row
            for is_late, _, _, row in listed
            if is_late and now - table.sequence(int(slot[row])).arrival >= most_s
        ]

    def _listed(self, row: int, slot: int) -> Listed:
        sequence = self.view.table.sequence(slot)
        return self._is_late(sequence), self.due(sequence), sequence.serial, row

    def room(self, sequence: Sequence, rest: int, taken: int, left: int) -> int:
        self._prepare(taken + left)
        if taken and self._spare < 1 and self._is_late(sequence) and not self.impatient(sequence):
            return 0
        beside = max(self._room + self._decodes.rows - taken, 0)
        load = StepLoad(self._decodes.rows, taken, self._decodes.reads, self._pairs)
        most, start = min(rest, left, beside), len(sequence.tokens) - rest
        fits = self.view.times.fitting(load, most, self._most_s, start)
        if fits >= rest or not (taken or self.view.cuts_prompts):
            return left
        if not self.view.cuts_prompts:
            return 0
        return fits if taken else max(fits, 1)

    def late(self, now: float) -> Iterator[Sequence]:
        """Requests that cannot be in time, if they are to be refused."""
        self._strike()
        struck = self._list.struck()
        if self.config.refuse_late:
            yield from (one for one in struck if one.finish is None and not one.started)

    # -- time ---------------------------------------------------------------

    def _prepare(self, budget: int) -> None:
        """Once in each step: how much of it prompts have."""
        if self._step == self.view.step:
            return
        self._step, self._pairs = self.view.step, 0
        table, times = self.view.table, self.view.times
        order = table.order
        decodes = order[table.planned[order] >= table.given[order]]
        rows = len(decodes)
        reads = int(table.planned[decodes].sum(dtype=np.int64)) + rows
        self._decodes = StepLoad(rows, rows, reads)
        alone_s = ROOMY * times.margin * times.seconds(StepLoad(1, 1, reads // max(rows, 1)))
        pace_s = self.view.promises.pace_s(decodes, alone_s)
        ttft_s, itl_s = self.view.promises.shortest_s(IN_STEPS * alone_s, alone_s)
        pace_s = min(pace_s if pace_s < inf else itl_s, ttft_s / IN_STEPS)
        self._most_s = MARGIN * pace_s / times.margin
        fitting = times.fitting(self._decodes, budget - rows, self._most_s)
        self._room = min(max(fitting, budget // LEAST, 1), budget - rows)
        is_busy = bool(len(self._list) or self._prompts())
        self._rest.seen(self.view.now, self._step_s() if is_busy else 0.0)
        late = [slot for slot in order.tolist() if self._is_late(table.sequence(slot))]
        if self._rest.share >= IDLE:
            self._spare = table.capacity
        else:
            begun = any(table.planned[slot] < table.given[slot] for slot in late)
            self._spare = int(not begun and self._delay_s(late) <= self._most_s / DELAY)

    def _delay_s(self, late: list[int]) -> float:
        """How much longer a step takes because of decodes of late requests."""
        table, decodes = self.view.table, self._decodes
        rows = [slot for slot in late if table.planned[slot] >= table.given[slot]]
        reads = int(table.planned[rows].sum(dtype=np.int64)) + len(rows)
        rest = decodes.rows - len(rows)
        others = StepLoad(rest, rest, decodes.reads - reads)
        return self.view.times.seconds(decodes) - self.view.times.seconds(others)

    def _strike(self) -> None:
        """Find out which requests are late."""
        prompts = self._prompts()
        step_s = self._step_s()
        if not (prompts or len(self._list)) or not step_s or not self._room:
            return
        begin = self.view.now + self.view.times.seconds(self._decodes) + step_s
        self._list.strike(prompts, self.view.now, begin, SURE * self._room / step_s)

    def _step_s(self) -> float:
        """Seconds of a step with as many prompts as it may have; 0: not known."""
        times = self.view.times
        return times.seconds(self._decodes.with_prompt(self._room)) if times.known else 0.0

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
        if self.view.now - sequence.queued_at >= self.config.ageing_s:
            self._credit -= uncached
        else:
            self._credit = min(self._credit + uncached / TURN, 0.0)
