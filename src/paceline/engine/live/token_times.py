"""Counts how long first tokens took, and the time between two tokens of a sequence."""

import numpy as np

from paceline.core.arrays import F64, I32, I64, Index
from paceline.core.events import Happened
from paceline.core.request import Sequence
from paceline.engine.frontend.metrics import LATENCY_S
from paceline.engine.histogram import Histogram
from paceline.engine.live.frames import LatencyCounts
from paceline.sched.slots import SlotTable

NEVER = float("nan")
MOST_KEPT = 1 << 14


class TokenTimes:
    """Looks at the slots after some steps. The tokens that a sequence got since the look before
    share the time since then.

    By slot: `_serial` and `_sequence` are who was seen there, `_known` its tokens then, and `_time`
    when that was, or the time of its first token; NEVER if it had none. `_awaited` have no token
    yet. `_kept` has tokens and time of preempted sequences, by serial. `_looked` is when it looked
    last.
    """

    def __init__(self, table: SlotTable) -> None:
        slots, self._table = table.capacity, table
        self._first, self._between = Histogram(LATENCY_S), Histogram(LATENCY_S)
        self._serial: I64 = np.full(slots, -1, np.int64)
        self._sequence: list[Sequence | None] = [None] * slots
        self._known: I32 = np.zeros(slots, np.int32)
        self._time: F64 = np.full(slots, NEVER)
        self._awaited: list[Sequence] = []
        self._kept: dict[int, tuple[int, float]] = {}
        self._looked = 0.0

    def begin(self) -> None:
        """Count from here on: of sequences that are here, tokens to come."""
        table = self._table
        self._serial[:] = -1
        self._sequence = [None] * table.capacity
        self._awaited, self._kept = [], {}

    def look(self, now: float, since: float) -> None:
        """Count what came since the look before. What came before `since` does not count."""
        table, order = self._table, self._table.order
        changed = order[table.serial[order] != self._serial[order]]
        if len(changed):
            self._follow(changed.tolist(), since)
        if self._awaited:
            self._awaited = [one for one in self._awaited if self._awaits(one, since)]
        known = table.known[order]
        new = known - self._known[order]
        gone = now - self._time[order]
        self._count(new, gone, now - self._looked)
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
        """Others are in these slots than before."""
        if len(self._kept) > MOST_KEPT:
            self._kept.clear()
        for slot in slots:
            left = self._sequence[slot]
            if left is not None and left.finish is None and left.slot != slot:
                self._kept[left.serial] = int(self._known[slot]), float(self._time[slot])
        for slot in slots:
            sequence = self._table.sequence(slot)
            self._sequence[slot], self._serial[slot] = sequence, sequence.serial
            if (kept := self._kept.pop(sequence.serial, None)) is not None:
                self._known[slot], self._time[slot] = kept
            elif (first := first_token(sequence)) is not None and first >= since:
                self._known[slot], self._time[slot] = len(sequence.request.prompt) + 1, first
                if sequence.child <= 0:
                    self._first.observe(first - sequence.arrival)
            else:
                self._known[slot], self._time[slot] = self._table.known[slot], NEVER
                if first is None and sequence.child <= 0:
                    self._awaited.append(sequence)

    def _awaits(self, sequence: Sequence, since: float) -> bool:
        """Has it no token yet? Count the time of its first one otherwise."""
        first = first_token(sequence)
        if first is None:
            return sequence.finish is None
        self._first.observe(first - sequence.arrival)
        if sequence.slot >= 0 and self._serial[sequence.slot] == sequence.serial:
            self._known[sequence.slot] = len(sequence.request.prompt) + 1
            self._time[sequence.slot] = max(first, since)
        return False

    def counts(self) -> tuple[LatencyCounts, LatencyCounts]:
        """First tokens, and the times between tokens, so far."""
        return counts_of(self._first), counts_of(self._between)


def first_token(sequence: Sequence) -> float | None:
    """When a sequence, or its family, got its first token."""
    return next((one.time for one in sequence.life if one.happened is Happened.FIRST_TOKEN), None)


def counts_of(histogram: Histogram) -> LatencyCounts:
    return LatencyCounts(histogram.bounds, tuple(histogram.counts), histogram.total)
