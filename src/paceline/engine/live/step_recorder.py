"""Looks at some of the steps of an engine, and lets the others pass at next to no cost."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from paceline.core.plan import Outputs, Plan
from paceline.engine.core.ports import Clock, StepObserver
from paceline.engine.live.frames import StepRecord, StepSplit
from paceline.engine.live.slot_cells import SlotCells
from paceline.engine.live.token_times import TokenTimes
from paceline.sched.scheduler import Scheduler
from paceline.sched.stats import Stats

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
