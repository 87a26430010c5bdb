"""The life of a request as a page draws it, and the times of its tokens."""

from collections.abc import Sequence as Several
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np

from paceline.core.arrays import F64, I32, I64, Index
from paceline.core.errors import RequestError
from paceline.core.events import Happened, Moment
from paceline.core.request import Sequence
from paceline.engine.frontend.metrics import LATENCY_S
from paceline.engine.live.frames import LatencyCounts, LifeMoment, LifePhase, RequestLife
from paceline.engine.loop.figures import Histogram
from paceline.engine.trace.step_trace import PHASES
from paceline.sched.explain import sentences
from paceline.sched.scheduler import Scheduler
from paceline.sched.slots import SlotTable

NEVER = float("nan")
MOST_KEPT = 1 << 14


class TokenTimes:
    """Looks at the slots after some steps. The tokens that a sequence got since the look before
    share the time since then.

    By slot: `_serial` and `_sequence` are who was seen there, `_known` its tokens then, and `_time`
    when that was, or the time of its first token; NEVER if it had none. `_awaited` have no token
    yet. `_kept` has tokens and time of preempted sequences. Both are by serial. `_looked` is when
    it looked last.
    """

    def __init__(self, table: SlotTable) -> None:
        slots, self._table = table.capacity, table
        self._first, self._between = Histogram(LATENCY_S), Histogram(LATENCY_S)
        self._serial: I64 = np.full(slots, -1, np.int64)
        self._sequence: list[Sequence | None] = [None] * slots
        self._known: I32 = np.zeros(slots, np.int32)
        self._time: F64 = np.full(slots, NEVER)
        self._awaited: dict[int, Sequence] = {}
        self._kept: dict[int, tuple[int, float]] = {}
        self._looked = 0.0

    def begin(self) -> None:
        """Count from here on."""
        self._serial[:] = -1
        self._sequence = [None] * self._table.capacity
        self._awaited, self._kept = {}, {}

    def look(self, now: float, since: float) -> None:
        """Count what came since the look before, but no first tokens from before `since`."""
        table, order = self._table, self._table.order
        if self._awaited:
            begun = [one for one in self._awaited.values() if not self._awaits(one)]
            for one in begun:
                del self._awaited[one.serial]
        changed: Index = np.flatnonzero(table.serial != self._serial)
        if len(changed):
            self._follow(changed.tolist(), since)
        new = table.known[order] - self._known[order]
        self._count(new, now - self._time[order], now - self._looked)
        got = order[new > 0]
        self._known[got], self._time[got] = table.known[got], now
        self._looked = now

    def _count(self, new: I32, gone: F64, usual_s: float) -> None:
        """Count gaps: `new` tokens of a sequence in so many seconds. Most sequences are alike."""
        if not len(new):
            return
        most = int(new.max())
        alike = (new == most) & (gone == usual_s)
        if most > 0 and (times := int(np.count_nonzero(alike))):
            self._between.observe(usual_s / most, times * most)
        rest: Index = np.flatnonzero((new > 0) & ~alike & ~np.isnan(gone))
        if len(rest):
            self._between.observe_all(gone[rest] / new[rest], new[rest])

    def _follow(self, slots: list[int], since: float) -> None:
        """Others are in these slots than before, or none."""
        if len(self._kept) > MOST_KEPT:
            self._kept.clear()
        for slot in slots:
            left = self._sequence[slot]
            if left is not None and left.finish is None:
                self._kept[left.serial] = int(self._known[slot]), float(self._time[slot])
        self._serial[slots] = self._table.serial[slots]
        for slot in slots:
            sequence = self._sequence[slot] = self._table.sequences[slot]
            if sequence is not None:
                self._seat(slot, sequence, since)

    def _seat(self, slot: int, sequence: Sequence, since: float) -> None:
        first = first_token(sequence)
        if (kept := self._kept.pop(sequence.serial, None)) is not None:
            self._known[slot], self._time[slot] = kept
        elif first is not None and first >= since:
            self._known[slot], self._time[slot] = len(sequence.request.prompt) + 1, first
            if sequence.child <= 0:
                self._first.observe(first - sequence.arrival)
        else:
            self._known[slot], self._time[slot] = self._table.known[slot], NEVER
            if first is None and sequence.child <= 0:
                self._awaited[sequence.serial] = sequence

    def _awaits(self, sequence: Sequence) -> bool:
        """Has it no token yet? Count the time of its first one otherwise."""
        first, slot = first_token(sequence), sequence.slot
        if first is None:
            return sequence.finish is None
        self._first.observe(first - sequence.arrival)
        if slot >= 0 and self._serial[slot] == sequence.serial:
            self._known[slot], self._time[slot] = len(sequence.request.prompt) + 1, first
        return False

    def counts(self) -> tuple[LatencyCounts, LatencyCounts]:
        """First tokens, and the times between tokens, so far."""
        return counts_of(self._first), counts_of(self._between)


def first_token(sequence: Sequence) -> float | None:
    """When a sequence, or its group, got its first token."""
    return next((one.time for one in sequence.life if one.happened is Happened.FIRST_TOKEN), None)


def counts_of(histogram: Histogram) -> LatencyCounts:
    return LatencyCounts(histogram.bounds, tuple(histogram.counts), histogram.total)


HEAD_TOKENS = 256  # of a prompt, for servers that may show prompts
HEAD = "head"  # the key of these
MOST_MOMENTS = 512
SHOWN_S = 0.001  # a shorter time before the engine is no phase


def life_of(scheduler: Scheduler, request_id: str, now: float) -> dict[str, Any]:
    """The fields of a `RequestLife` of a live or remembered request, and the first tokens of its
    prompt under `HEAD`. RequestError if it is not remembered."""
    text = scheduler.explain(request_id)
    sequence = scheduler.view.sequence(request_id)
    if sequence is None:
        raise RequestError(f"no request {request_id!r} is known")
    found: dict[str, Any] = msgspec.to_builtins(life(scheduler, sequence, text, now))
    return found | {HEAD: sequence.request.prompt[:HEAD_TOKENS].tolist()}


def life(scheduler: Scheduler, sequence: Sequence, text: str, now: float) -> RequestLife:
    request, table, slot = sequence.request, scheduler.view.table, sequence.slot
    known, computed = len(sequence.tokens), 0
    if slot >= 0:
        known, computed = int(table.known[slot]), int(table.computed[slot])
    elif sequence.finish is not None:
        known = sequence.life[-1].amount
        computed = max(known - 1, 0) if sequence.started else 0
    return RequestLife(
        request_id=sequence.id,
        engine=0,
        state=sequence.state,
        arrival=sequence.arrival,
        now=now,
        prompt=len(request.prompt),
        known=known,
        computed=computed,
        cached=sequence.cached,
        limit=sequence.limit,
        preemptions=sequence.preemptions,
        tenant=request.tenant,
        priority=request.priority,
        phases=(*way_here(sequence), *phases_of(sequence.life)),
        moments=tuple(moment_of(one) for one in sequence.life[-MOST_MOMENTS:]),
        sentences=tuple(text.splitlines()),
    )


def way_here(sequence: Sequence) -> list[LifePhase]:
    """The time before the engine took a request up: a step was in progress, or another engine had
    the request."""
    begin, end = sequence.arrival, sequence.queued_at
    return [LifePhase("before the engine", begin, end, 0)] if end - begin >= SHOWN_S else []


def phases_of(moments: Several[Moment]) -> list[LifePhase]:
    """What a request did, one thing after another."""
    turns = [one for one in moments if one.happened in PHASES or one.happened is Happened.FINISHED]
    ends: list[float | None] = [later.time for _, later in pairwise(turns)]
    if turns and turns[-1].happened is not Happened.FINISHED:
        ends.append(None)
    found = zip(turns, ends, strict=False)
    phases = [
        LifePhase(PHASES[one.happened], one.time, end, one.step, one.cause) for one, end in found
    ]
    return phases[-MOST_MOMENTS:]


def moment_of(one: Moment) -> LifeMoment:
    spoken = sentences.sentence(one)
    return LifeMoment(one.happened.value, one.time, one.step, one.amount, one.cause, spoken)
