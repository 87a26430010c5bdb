"""Notes what committed steps did, at a cost that does not grow with the running sequences."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from paceline.core.plan import Outputs, Plan, Rows
from paceline.engine.core.ports import Clock, StepObserver
from paceline.engine.live.frames import StepRecord, StepSplit
from paceline.engine.live.slot_cells import SlotCells
from paceline.engine.live.token_times import TokenTimes
from paceline.sched.scheduler import Scheduler
from paceline.sched.stats import Stats

RECORDS = 64  # of a period, at most


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


class StepRecorder(StepObserver):
    """Every step is counted. Some get a record, at most one in `_gap_s`.

    slots, tokens   who is in which slot / when sequences got tokens
    expired         called between two steps once nobody has asked for frames until `until`
    plan_s, launch_s, wait_s, commit_s, report_s   seconds of all steps
    _mark           when the latest of these ended, while a step is worked on
    _rows           of the latest plan
    _flight         sampled steps that are not committed
    _ended          the sampled step that was committed last, until its report has ended
    _records        since the latest frame
    _left_out       steps since the latest record
    _latest         when the latest sampled step was planned
    _reports        is the time since the latest commit a report?
    _clock, _scheduler, _gap_s   as given
    """

    def __init__(self, scheduler: Scheduler, clock: Clock, period_s: float) -> None:
        self._scheduler, self._clock, self._gap_s = scheduler, clock, period_s / RECORDS
        self.slots = SlotCells(scheduler.view.table)
        self.tokens = TokenTimes(scheduler.view.table)
        self.expired: Callable[[], None] = lambda: None
        self.until = 0.0
        self.plan_s = self.launch_s = self.wait_s = self.commit_s = self.report_s = 0.0
        self._mark = self._latest = 0.0
        self._rows: Rows | None = None
        self._flight: deque[SampledStep] = deque()
        self._ended: SampledStep | None = None
        self._records: list[StepRecord] = []
        self._left_out = 0
        self._reports = False

    def begin(self) -> None:
        """Record from here on, between two turns."""
        self.slots.begin(self._scheduler.stats.steps)
        self.tokens.begin()
        self._mark, self._latest, self._rows = self._clock(), float("-inf"), None
        self._flight.clear()
        self._records, self._ended, self._left_out, self._reports = [], None, 0, False

    # -- the borders of a step ----------------------------------------------

    def planning(self) -> None:
        now = self._clock()
        if self._reports:
            self._end_report(now)
        self._mark = now

    def planned(self, plan: Plan) -> None:
        now, begun = self._clock(), self._mark
        took, self._mark = now - begun, now
        self.plan_s += took
        repeats = plan.rows is self._rows
        if not repeats:
            self._rows = None if plan.empty else plan.rows
            left, seated = self.slots.follow(plan)
            self.tokens.change(left, seated)
        if begun - self._latest >= self._gap_s and self._rows is not None:
            self._latest = begun
            drawn = self.slots.drawn(plan, repeats)
            self._flight.append(SampledStep(plan, begun, took, *drawn))
            self._mark = self._clock()  # drawing is no part of the launch

    def launched(self, plan: Plan) -> None:
        now = self._clock()
        took, self._mark = now - self._mark, now
        self.launch_s += took
        if self._flight and self._flight[-1].plan is plan:
            self._flight[-1].launch_s = took

    def landed(self, plan: Plan) -> None:
        now = self._clock()
        took, self._mark = now - self._mark, now
        self.wait_s += took
        flight = self._flight
        while flight and flight[0].plan.step < plan.step:
            flight.popleft()  # it failed
        if flight and flight[0].plan is plan:
            flight[0].wait(took, self._scheduler.stats)

    def committed(self, plan: Plan, outputs: Outputs) -> None:
        if plan.rows is not self._rows and plan.empty:
            return
        now = self._clock()
        took, self._mark, self._reports = now - self._mark, now, True
        self.commit_s += took
        self.tokens.committed(plan, outputs, now)
        flight = self._flight
        if not (flight and flight[0].plan is plan):
            self._left_out += 1
            return
        self._ended = flight.popleft()
        self._ended.end(took, self._scheduler.stats, self._left_out)
        self._left_out = 0
        if now > self.until:
            self.expired()

    def changed(self) -> None:
        if self._reports and self._scheduler.idle:  # what follows is a rest
            self._end_report(self._clock())

    def _end_report(self, now: float) -> None:
        self._reports = False
        self.report_s += now - self._mark
        if self._ended is not None:
            self._records.append(self._ended.record(now - self._mark))
            self._ended = None

    # -- for frames ---------------------------------------------------------

    @property
    def split(self) -> StepSplit:
        return StepSplit(self.plan_s, self.launch_s, self.wait_s, self.commit_s, self.report_s)

    def take(self) -> tuple[tuple[StepRecord, ...], int]:
        """The records since the previous call, and how many steps came after the last one."""
        if self._ended is not None:
            self._records.append(self._ended.record(self._clock() - self._mark))
            self._ended = None
        records, self._records = tuple(self._records), []
        return records, self._left_out
