"""Which requests have their tokens as soon as they were promised, and why others have not."""

from math import inf, nan
from typing import Literal, NamedTuple

import numpy as np

from paceline.core.arrays import F64, I32, I64, Bool, Index
from paceline.core.events import Happened
from paceline.core.request import Finish, Sequence
from paceline.core.settings.features import ServiceConfig
from paceline.sched.slots import SlotTable

Cause = Literal["queue", "interference", "preemption", "device"]
CAUSES: tuple[Cause, ...] = ("queue", "interference", "preemption", "device")
LATE_GAPS = 100  # one in so many gaps of a request may be longer than its target
COLUMNS = ("_last", "_ttft", "_itl", "_late", "_gaps", "_ends", "_lost", "_preempted")
FIRST_ROWS = 64


class Verdict(NamedTuple):
    """Whether a request had its tokens in time."""

    cause: Cause | Literal[""]  # of a miss; "": every target was met
    text: str = ""  # which target was missed, and by how much


class Promises:
    """The requests with targets that are open, one row each.

    row r of a request
        _last[r]        when its latest token came; NaN: it has none
        _ttft[r]        target of its first token, in seconds; inf: none
        _itl[r]         target between two tokens, in seconds; inf: none
        _gaps[r]        gaps so far
        _late[r, c]     of those, the ones that were longer than the target, by cause
        _ends[r]        gaps that it may have
        _lost[r]        can it no longer meet its targets?
        _preempted[r]   was it preempted since its latest token?

    A request keeps its row while it changes slots. Several sequences of one request are judged by
    the first one. `_slots` has the row of the sequence in a slot, if `_epochs` is that of the slot.
    """

    def __init__(self, config: ServiceConfig, table: SlotTable) -> None:
        self._config, self._table = config, table
        self.of_all = config != ServiceConfig()  # may a request have targets without its own?
        self._rows: dict[int, int] = {}  # by serial
        self._free: list[int] = []
        self._slots: I64 = np.full(table.capacity, -1, np.int64)
        self._epochs: I64 = np.full(table.capacity, -1, np.int64)
        self._last: F64 = np.full(0, nan)
        self._ttft: F64 = np.full(0, inf)
        self._itl: F64 = np.full(0, inf)
        self._late: I32 = np.zeros((0, len(CAUSES)), np.int32)
        self._gaps: I32 = np.zeros(0, np.int32)
        self._ends: I32 = np.zeros(0, np.int32)
        self._lost: Bool = np.zeros(0, np.bool_)
        self._preempted: Bool = np.zeros(0, np.bool_)

    @property
    def open(self) -> int:
        """Requests with targets that have not ended."""
        return len(self._rows)

    def ttft_s(self, sequence: Sequence) -> float:
        """The target of the time from arrival to the first token; inf: none."""
        return self._config.ttft_s(sequence.request.tenant, sequence.request.deadline)

    # -- events of a request --------------------------------------------------

    def opened(self, sequence: Sequence) -> None:
        """A request is submitted."""
        request = sequence.request
        if not (self.of_all or request.deadline or request.token_deadline):
            return
        itl_s = self._config.itl_s(sequence.request.tenant, sequence.request.token_deadline)
        ttft_s = self.ttft_s(sequence)
        if ttft_s == inf and itl_s == inf:
            return
        if not self._free:
            self._grow()
        row = self._rows[sequence.serial] = self._free.pop()
        self._last[row], self._ttft[row], self._itl[row] = nan, ttft_s, itl_s
        self._late[row], self._gaps[row] = 0, 0
        self._ends[row] = max(sequence.limit - len(sequence.tokens) - 1, 0)
        self._lost[row] = self._preempted[row] = False

    def _grow(self) -> None:
        """Double the rows."""
        size = len(self._last)
        more = max(size, FIRST_ROWS)
        for name in COLUMNS:
            column = getattr(self, name)
            fill = inf if name in ("_ttft", "_itl") else 0
            new = np.full((more, *column.shape[1:]), fill, column.dtype)
            setattr(self, name, np.concatenate([column, new]))
        self._free += range(size + more - 1, size - 1, -1)

    def preempted(self, sequence: Sequence) -> None:
        """A resident lost its slot."""
        if (row := self._rows.get(sequence.serial)) is not None:
            self._preempted[row] = True

    def sampled(self, slot: Index, count: I32, now: float, has_prompts: bool) -> None:
        """Residents got tokens at a time, by a step with prompts or without."""
        if not self._rows:
            return
        row = self._rows_of(slot)
        kept = (row >= 0) & (count > 0)
        row, slot = row[kept], slot[kept]
        last = self._last[row]
        gap = now - last  # NaN: it is the first token
        self._last[row] = now
        is_first = np.isnan(last)
        if is_first.any():
            self._begin(slot[is_first], row[is_first], now)
        self._gaps[row] += ~is_first
        late = gap > self._itl[row]
        if late.any():
            usual = CAUSES.index("interference" if has_prompts else "device")
            given_way = CAUSES.index("preemption")
            cause = np.where(self._preempted[row[late]], given_way, usual)
            self._late[row[late], cause] += 1
            total = self._late[row[late]].sum(axis=1)
            self._lost[row[late]] |= total * LATE_GAPS > self._ends[row[late]]
        self._preempted[row] = False

    def _begin(self, slot: Index, row: Index, now: float) -> None:
        """Residents got their first token."""
        for one, own in zip(slot.tolist(), row.tolist(), strict=True):
            sequence = self._table.sequence(one)
            self._lost[own] = now - sequence.arrival > self.ttft_s(sequence)

    def _rows_of(self, slot: Index) -> Index:
        """The row of each slot; -1: its sequence has no targets."""
        epoch = self._table.epoch[slot]
        for one in slot[self._epochs[slot] != epoch].tolist():
            self._slots[one] = self._rows.get(int(self._table.serial[one]), -1)
            self._epochs[one] = self._table.epoch[one]
        return self._slots[slot]

    # -- what policies ask --------------------------------------------------

    def pace_s(self, slot: Index, least_s: float = 0.0) -> float:
        """The shortest target between two tokens among residents that can meet theirs; inf: none
        has one. No step is shorter than `least_s`."""
        if not self._rows:
            return inf
        row = self._rows_of(slot)
        row = row[row >= 0]
        pace = self._itl[row[~self._lost[row]]]
        return float(pace[pace >= least_s].min(initial=inf))

    def shortest_s(self, ttft_s: float, itl_s: float) -> tuple[float, float]:
        """The shortest targets of all open requests, of first tokens and between two tokens, that
        are not below these; inf: there are none."""
        columns = ((self._ttft, ttft_s), (self._itl, itl_s))
        first, between = (float(one[one >= least].min(initial=inf)) for one, least in columns)
        return first, between

    def is_lost(self, sequence: Sequence) -> bool:
        """Has it missed a target for good?"""
        row = self._rows.get(sequence.serial)
        return row is not None and bool(self._lost[row])

    # -- the end ------------------------------------------------------------

    def closed(self, sequence: Sequence, finish: Finish, alone_s: float) -> Verdict | None:
        """A request has ended, whose prompt takes `alone_s` by itself. None: it had no targets, or
        its client left."""
        row = self._rows.pop(sequence.serial, None)
        if row is None:
            return None
        self._free.append(row)
        verdict = self._verdict(sequence, finish, alone_s, row)
        self._ttft[row] = self._itl[row] = inf
        return verdict

    def _verdict(
        self, sequence: Sequence, finish: Finish, alone_s: float, row: int
    ) -> Verdict | None:
        if finish is Finish.ABORT:
            return None
        if finish is Finish.TIMEOUT:
            return Verdict("queue", "it was refused before its first token")
        if finish is Finish.ERROR:
            return Verdict("device", "it ended with an error")
        return self._first_token(sequence, alone_s) or self._pace(row)

    def _first_token(self, sequence: Sequence, alone_s: float) -> Verdict | None:
        """The miss of the first token, if it was missed."""
        times: dict[Happened, float] = {}
        for moment in sequence.life:
            times.setdefault(moment.happened, moment.time)
        first, target = times.get(Happened.FIRST_TOKEN), self.ttft_s(sequence)
        if first is None or first - sequence.arrival <= target:
            return None
        queued = times.get(Happened.ADMITTED, first) - sequence.arrival
        preempted = min(times.get(Happened.PREEMPTED, inf), times.get(Happened.SWAPPED, inf))
        took = f"its first token took {ms(first - sequence.arrival)} instead of {ms(target)}"
        if alone_s > target:
            return Verdict("device", f"{took}; alone its prompt takes {ms(alone_s)}")
        if preempted < first:
            return Verdict("preemption", f"{took}; it was preempted before")
        if queued + alone_s > target:
            return Verdict("queue", f"{took}, {ms(queued)} of it in the queue")
        return Verdict("interference", f"{took}; others shared its steps")

    def _pace(self, row: int) -> Verdict:
        """Whether the gaps were kept."""
        late, gaps = self._late[row], int(self._gaps[row])
        total = int(late.sum())
        if total * LATE_GAPS <= gaps:
            return Verdict("")
        cause = CAUSES[int(late.argmax())]
        return Verdict(
            cause, f"{total:,} of {gaps:,} gaps were longer than {ms(float(self._itl[row]))}"
        )


def ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.0f} ms"
