"""Counts how long first tokens took, and the time between two tokens of a sequence."""

import numpy as np

from paceline.core.arrays import F64, I64, Index
from paceline.core.plan import Outputs, Plan, Rows
from paceline.engine.frontend.metrics import LATENCY_S
from paceline.engine.histogram import Histogram
from paceline.engine.live.frames import LatencyCounts
from paceline.sched.slots import SlotTable

NEVER = float("nan")
MOST_KEPT = 1 << 16


class TokenTimes:
    """`_latest` has the time of the latest tokens of each slot, NEVER if it has none.

    While the same rows get one token each, step after step, the gaps of all of them are the same:
    they wait in `_gaps`, and `_latest` is written when that ends. `_awaited` has the arrivals of
    those that have no token yet, by slot; `_kept` the latest times of preempted sequences, by their
    serials, which `_serial` has by slot.
    """

    def __init__(self, table: SlotTable) -> None:
        self._table = table
        self._first, self._between = Histogram(LATENCY_S), Histogram(LATENCY_S)
        self._latest: F64 = np.full(table.capacity, NEVER)
        self._serial: I64 = np.full(table.capacity, -1, np.int64)
        self._awaited: dict[int, float] = {}
        self._kept: dict[int, float] = {}  # by serial
        self._rows: Rows | None = None  # the latest that were committed
        self._once = b""  # what they yield if each yields one token
        self._before = 0.0  # when they were
        self._gaps: list[float] = []

    def begin(self) -> None:
        """Count from here on."""
        self._latest[:] = NEVER
        self._awaited, self._kept, self._rows, self._gaps = {}, {}, None, []
        self._seat(self._table.order.tolist())

    def change(self, preempted: list[int], seated: list[int]) -> None:
        """Sequences were preempted in some slots, and others took up some."""
        if not (preempted or seated):
            return
        self._flush()
        if len(self._kept) > MOST_KEPT:  # of those that were aborted before they came back
            self._kept.clear()
        for slot in preempted:
            self._kept[int(self._serial[slot])] = float(self._latest[slot])
            self._awaited.pop(slot, None)
        self._seat(seated)

    def _seat(self, slots: list[int]) -> None:
        table = self._table
        for slot in slots:
            sequence = table.sequence(slot)
            self._serial[slot] = sequence.serial
            self._latest[slot] = self._kept.pop(sequence.serial, NEVER)
            self._awaited.pop(slot, None)
            if sequence.child <= 0 and table.known[slot] <= table.prompt[slot]:
                self._awaited[slot] = sequence.arrival

    def committed(self, plan: Plan, outputs: Outputs, now: float) -> None:
        rows = plan.rows
        if rows is self._rows and outputs.row is None and outputs.count.tobytes() == self._once:
            self._gaps.append(now - self._before)
        else:
            self._flush()
            self._count(plan, outputs, now)
            self._rows, self._once = rows, np.ones(len(rows), outputs.count.dtype).tobytes()
        self._before = now

    def _count(self, plan: Plan, outputs: Outputs, now: float) -> None:
        slot: Index = plan.rows.slot if outputs.row is None else plan.rows.slot[outputs.row]
        slot = slot[outputs.count > 0] if len(outputs.count) else slot[:0]
        gaps = now - self._latest[slot]
        usual = now - self._before
        alike = int(np.count_nonzero(gaps == usual))
        if alike:
            self._between.observe(usual, alike)
        if alike < len(gaps):
            others = gaps[(gaps != usual) & ~np.isnan(gaps)]
            if len(others):
                self._between.observe_all(others)
        self._latest[slot] = now
        if self._awaited:
            self._count_first(now)

    def _count_first(self, now: float) -> None:
        table = self._table
        begun = [slot for slot in self._awaited if table.known[slot] > table.prompt[slot]]
        for slot in begun:
            self._first.observe(now - self._awaited.pop(slot))

    def _flush(self) -> None:
        """Count the gaps that wait."""
        if self._gaps and self._rows is not None:
            gaps, self._gaps = np.array(self._gaps), []
            self._between.observe_all(gaps, len(self._rows))
            self._latest[self._rows.slot] = self._before

    def counts(self) -> tuple[LatencyCounts, LatencyCounts]:
        """First tokens, and the times between tokens, so far."""
        self._flush()
        return counts_of(self._first), counts_of(self._between)


def counts_of(histogram: Histogram) -> LatencyCounts:
    return LatencyCounts(histogram.bounds, tuple(histogram.counts), histogram.total)
