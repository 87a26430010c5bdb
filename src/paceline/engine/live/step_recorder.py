"""Looks at some of the steps of an engine, and lets the others pass at next to no cost."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from paceline.core.arrays import I64, Bool, Index, Names
from paceline.core.plan import Outputs, Plan, Rows
from paceline.engine.live.frames import (
    AGAIN,
    CACHED,
    DECODE,
    DRAFTS,
    IDLE,
    PREEMPTED,
    PREFILL,
    VACANT,
    Seat,
    StepRecord,
    StepSplit,
)
from paceline.engine.live.lives import TokenTimes
from paceline.engine.loop.ports import Clock, StepObserver
from paceline.sched.scheduler import Scheduler
from paceline.sched.slots import SlotTable
from paceline.sched.stats import Stats

LETTERS = (VACANT, IDLE, PREFILL, AGAIN, CACHED, DECODE, DRAFTS, PREEMPTED)
KIND = {letter: ord(letter) for letter in LETTERS}
SEATS_PER_SLOT = 4  # between two frames


class SlotCells:
    """Draws the cells of some steps, and seats the sequences that it finds in slots.

    `_serial`, `_name` and `_resumed` are by slot: the sequence that was drawn there last, the id of
    its request, and whether it ran before and was preempted. `_drawn` are rows whose cells are in
    `_text`, also in the steps that repeat them.
    """

    def __init__(self, table: SlotTable) -> None:
        self._table = table
        self._serial: I64 = np.full(table.capacity, -1, np.int64)
        self._name: Names = np.full(table.capacity, None, object)
        self._resumed: Bool = np.zeros(table.capacity, np.bool_)
        self._seats: list[Seat] = []
        self._drawn: Rows | None = None
        self._text, self._prompts = "", 0

    def begin(self) -> None:
        """Add all residents to the next step that is drawn."""
        self._serial[:] = -1
        self._name[:] = None
        self._seats, self._drawn = [], None

    def take_seats(self) -> tuple[Seat, ...]:
        """Sequences that were found in a slot since the previous call."""
        seats, self._seats = tuple(self._seats), []
        return seats

    @property
    def crowded(self) -> bool:
        """Are there too many seats for one frame?"""
        return len(self._seats) > SEATS_PER_SLOT * self._table.capacity

    def forget_seats(self) -> None:
        """Keep the latest seat of each slot: no record needs the others."""
        self._seats = [*{one.slot: one for one in self._seats}.values()]

    def drawn(self, plan: Plan) -> tuple[str, int]:
        """The cells of a step that was just planned, and how many of its rows compute known
        tokens."""
        if plan.rows is not self._drawn:
            preempted = self._preempted(plan) if plan.preempted else []
            self._seat(plan.step)
            self._draw(plan, preempted)
            self._drawn = None if preempted or plan.admitted else plan.rows
        return self._text, self._prompts

    def _preempted(self, plan: Plan) -> list[int]:
        """The slots in which preempted sequences were drawn."""
        names = set(plan.preempted)
        return [slot for slot in plan.released if self._name[slot] in names]

    def _seat(self, step: int) -> None:
        """Record the requests that came since the latest step that was drawn."""
        table, order = self._table, self._table.order
        changed = order[table.serial[order] != self._serial[order]]
        if not len(changed):
            return
        self._serial[changed] = table.serial[changed]
        self._name[changed] = table.name[changed]
        for slot in changed.tolist():
            sequence = table.sequence(slot)
            self._resumed[slot] = sequence.preemptions > 0
            prompt = len(sequence.request.prompt)
            self._seats.append(Seat(slot, step, sequence.id, sequence.child, prompt))

    def _draw(self, plan: Plan, preempted: list[int]) -> None:
        table, rows, slot = self._table, plan.rows, plan.rows.slot
        cells = np.full(table.capacity, KIND[VACANT], np.uint8)
        cells[preempted] = KIND[PREEMPTED]
        cells[table.order] = KIND[IDLE]
        kinds = np.where(rows.drafts > 0, KIND[DRAFTS], KIND[DECODE])
        kinds[plan.start < table.prompt[slot]] = KIND[PREFILL]
        # The last known token is computed for the first time, also after a preemption.
        kinds[self._resumed[slot] & (plan.start < table.given[slot] - 1)] = KIND[AGAIN]
        self._prompts = int(np.count_nonzero((kinds == KIND[PREFILL]) | (kinds == KIND[AGAIN])))
        cells[slot] = kinds
        for new in plan.admitted:
            sequence = table.sequences[new.slot]
            if cells[new.slot] == KIND[PREFILL] and sequence is not None and sequence.cached:
                cells[new.slot] = KIND[CACHED]
        used: Index = np.flatnonzero(cells != KIND[VACANT])
        last = int(used[-1]) + 1 if len(used) else 0
        self._text = cells[:last].tobytes().decode("ascii")


MOST_RECORDS = 256  # between two frames
SHARE = 0.005  # of the time that looks may take: there are fewer if they take long


@dataclass(slots=True, eq=False)
class SampledStep:
    """A step that will have a record, from its plan to the plan after its commit."""

    plan: Plan
    time: float
    plan_s: float
    cells: str
    prompts: int
    launch_s: float = 0.0
    wait_s: float = 0.0
    commit_s: float = 0.0
    tokens: int = 0
    drafts: int = 0
    accepted: int = 0
    left_out: int = 0

    def wait(self, wait_s: float, stats: Stats) -> None:
        """It is about to be committed."""
        self.wait_s = wait_s
        self.tokens, self.drafts, self.accepted = stats.sampled, stats.drafted, stats.accepted

    def end(self, commit_s: float, stats: Stats, left_out: int) -> None:
        """It was committed, after some that have no record."""
        self.commit_s, self.left_out = commit_s, left_out
        self.tokens = stats.sampled - self.tokens
        self.drafts = stats.drafted - self.drafts
        self.accepted = stats.accepted - self.accepted

    def record(self, report_s: float) -> StepRecord:
        plan = self.plan
        split = StepSplit(self.plan_s, self.launch_s, self.wait_s, self.commit_s, report_s)
        return StepRecord(
            step=plan.step,
            time=self.time,
            split=split,
            rows=len(plan.rows),
            positions=plan.total,
            prompts=self.prompts,
            drafts=self.drafts,
            accepted=self.accepted,
            admitted=len(plan.admitted),
            preempted=len(plan.preempted),
            tokens=self.tokens,
            left_out=self.left_out,
            cells=self.cells,
        )


class PassingSteps(StepObserver):
    """Sees the steps that get no record: it counts them until the next look is `due`."""

    def __init__(self, clock: Clock, look: Callable[[], None]) -> None:
        self._clock, self._look = clock, look
        self.due = 0.0
        self.steps = 0

    def committed(self, plan: Plan, outputs: Outputs) -> None:
        if len(plan.rows.slot):
            self.steps += 1
            if self._clock() >= self.due:
                self._look()


class StepRecorder(StepObserver):
    """Observes the engine while there is a step to look at; otherwise `passing` does.

    slots, tokens   who does what in which slot / when sequences got tokens
    watch           called with the observer that is to see the steps: this one or `passing`
    until, expired  when nobody wants frames any more / called then, between two steps
    split           seconds of all steps: those that were looked at stand for the others
    _mark           when the latest part of a step ended
    _flight         steps to be looked at, not committed yet
    _ended          the one that was committed last, until its report has ended
    _records        since the latest frame
    _begun          when recording began
    gap_s           least time between two looks
    _scheduler, _clock, _meter   as given
    """

    def __init__(self, scheduler: Scheduler, clock: Clock, gap_s: float, meter: Clock) -> None:
        """`meter` is the CPU time that looks take."""
        self._scheduler, self._clock, self._meter = scheduler, clock, meter
        self.slots = SlotCells(scheduler.view.table)
        self.tokens = TokenTimes(scheduler.view.table)
        self.passing = PassingSteps(clock, lambda: self.watch(self))
        self.watch: Callable[[StepObserver], None] = lambda _: None
        self.until = 0.0
        self.expired: Callable[[], None] = lambda: None
        self.split = StepSplit()
        self._mark = self._begun = 0.0
        self._flight: deque[SampledStep] = deque()
        self._ended: SampledStep | None = None
        self._records: list[StepRecord] = []
        self.gap_s = gap_s

    def begin(self) -> None:
        """Record from here on, between two turns."""
        self.slots.begin()
        self.tokens.begin()
        self._mark = self._begun = self._clock()
        self._flight.clear()
        self._records, self._ended = [], None
        self.passing.due, self.passing.steps = self._begun, 0
        self.watch(self)

    # -- the borders of a step ----------------------------------------------

    def planning(self) -> None:
        now = self._clock()
        if self._ended is not None:
            self._end_report(now)
        self._mark = now

    def planned(self, plan: Plan) -> None:
        now, begun = self._clock(), self._mark
        if begun >= self.passing.due and not plan.empty:
            before = self._meter()
            self._flight.append(SampledStep(plan, begun, now - begun, *self.slots.drawn(plan)))
            self._looked(begun, self._meter() - before)
            if self.slots.crowded or len(self._records) >= MOST_RECORDS:
                self._forget_records()
            now = self._clock()
        self._mark = now

    def _forget_records(self) -> None:
        """No frame was made for long, or very many requests came: begin the next one here."""
        self.passing.steps += sum(1 + one.left_out for one in self._records)
        self._records = []
        self.slots.forget_seats()

    def _looked(self, now: float, took_s: float) -> None:
        """The next look is due some time after this one, depending on what it took."""
        self.passing.due = max(now + self.gap_s, self.passing.due + took_s / SHARE)

    def launched(self, plan: Plan) -> None:
        now = self._clock()
        if self._flight and self._flight[-1].plan is plan:
            self._flight[-1].launch_s = now - self._mark
        self._mark = now

    def landed(self, plan: Plan) -> None:
        now, flight = self._clock(), self._flight
        while flight and flight[0].plan.step < plan.step:
            flight.popleft()  # it failed
        if flight and flight[0].plan is plan:
            flight[0].wait(now - self._mark, self._scheduler.stats)
        self._mark = now

    def committed(self, plan: Plan, outputs: Outputs) -> None:
        now, flight = self._clock(), self._flight
        if not (flight and flight[0].plan is plan):
            self.passing.steps += len(plan.rows) > 0
            return
        self._ended = flight.popleft()
        self._ended.end(now - self._mark, self._scheduler.stats, self.passing.steps)
        self.passing.steps = 0
        before = self._meter()
        self.tokens.look(now, self._begun)
        self._looked(self._ended.time, self._meter() - before)
        self._mark = now
        if now > self.until:
            self.expired()

    def changed(self) -> None:
        """Nothing is reported while the engine rests, and nothing is looked at if it does."""
        if self._ended is not None and self._scheduler.idle:
            self._end_report(self._clock())
        if not self._flight and self._ended is None and self._clock() < self.passing.due:
            self.watch(self.passing)

    def _end_report(self, now: float) -> None:
        assert self._ended is not None
        step, self._ended = self._ended.record(now - self._mark), None
        self._records.append(step)
        self.split = added(self.split, step.split, 1 + step.left_out)

    # -- for frames ---------------------------------------------------------

    def take(self) -> tuple[tuple[StepRecord, ...], int]:
        """The records since the previous call, and how many steps came after the last one."""
        if self._ended is not None:
            self._end_report(self._clock())
        records, self._records = tuple(self._records), []
        return records, self.passing.steps


def added(split: StepSplit, other: StepSplit, times: int) -> StepSplit:
    return StepSplit(
        split.plan + other.plan * times,
        split.launch + other.launch * times,
        split.wait + other.wait * times,
        split.commit + other.commit * times,
        split.report + other.report * times,
    )
