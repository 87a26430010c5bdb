"""Decide what each step computes, and account for what came back."""

from collections import deque
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from paceline.core.config import Config
from paceline.core.errors import ConfigError, QueueFull, RequestError, StepError
from paceline.core.events import CacheEvent
from paceline.core.plan import NO_OUTPUTS, Ended, Outputs, Plan, Rows, StepResult
from paceline.core.request import Finish, Request, Sequence
from paceline.sched import discipline, timeouts
from paceline.sched.accounting import Accounting
from paceline.sched.changes import News
from paceline.sched.composition import Composition
from paceline.sched.explain import sentences, snapshot
from paceline.sched.explain.journal import Gate
from paceline.sched.families.abort_child import Children
from paceline.sched.families.family import Family
from paceline.sched.fitting import fitting_limit
from paceline.sched.queue_limits import QueueLimits
from paceline.sched.residency import Residency
from paceline.sched.stats import Stats
from paceline.sched.steady import Steady
from paceline.sched.step_times import StepTimes
from paceline.sched.swapping import Rates
from paceline.sched.timeouts import Timeout
from paceline.sched.view import SchedulerView

Pause = Literal["", "new", "all"]


class Scheduler:
    """Decides what each step computes: one `plan()` per step, one `commit()` per result.

    Commits have the order of the plans. Committing an empty plan is allowed; it reports pending
    finishes. `plan()` may run again before `commit()`, which makes the pipeline deeper. `now` is
    a time in seconds, on any clock.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.residency = Residency(config)
        self.view = SchedulerView(self.residency)
        self._limits = QueueLimits(config.queue, self.view)
        self._timeouts = timeouts.load(self.residency.policy, self._limits, self.residency.live)
        self._discipline = discipline.load(config, self.residency, self.residency.speculation)
        self._accounting = Accounting(self.residency)
        self._children = Children(self.residency)
        self._flight: deque[int] = deque()  # steps planned and not committed
        self._void_until = 0  # steps up to here were given up
        self._steady: Steady | None = None
        self._gate: Gate | None = None
        self._paused: Pause = ""
        self._draining, self._serials = False, 0
        self._untold: list[Ended] = []  # ends that no commit has reported

    @classmethod
    def create(cls, **settings: Any) -> "Scheduler":
        """Build a scheduler from settings by name: `Scheduler.create(max_num_seqs=8)`."""
        return cls(Config.of(**settings))

    # -- requests -----------------------------------------------------------

    def submit(self, request: Request, now: float, parked: str = "") -> None:
        """Queue a request, or park it for a reason. RequestError if it can never run."""
        self._tick(now)
        limit = self._admissible(request)
        arrival = self.residency.now if request.arrival is None else request.arrival
        sequence = Sequence(request, self._serials, limit, arrival, request.prompt)
        width = request.width
        if width > 1:
            self.residency.families[request.id] = Family.of(sequence)
        self._serials += width
        self.residency.enter(sequence, parked)
        self._limits.entered(request, self.residency.now)

    def _admissible(self, request: Request) -> int:
        """The tokens at which the request will end, if it can be queued and can run at all."""
        at, untold = self.residency, self._untold
        if request.id in at.live or (untold and request.id in [end.request_id for end in untold]):
            raise RequestError(f"request {request.id!r} is already here")
        if twin := at.families.namesake(request, at.live):
            raise RequestError(f"request {request.id!r} would share a name with one of {twin!r}")
        if self._draining:
            raise QueueFull("the scheduler is draining and takes no new requests")
        self._limits.refuse_excess(request)
        return fitting_limit(request, self.config, at.cache)

    def abort(self, request_id: str, now: float, child: int | None = None) -> bool:
        """End a request in any state, or one of its `n` children. False if it is not here.
        RequestError for a child of a request that reports only its best sequences."""
        self._tick(now)
        sequence = self.residency.live.get(request_id)
        if sequence is None:
            return False
        if child is None:
            self._dismiss(sequence, Finish.ABORT)
            return True
        ended = self._children.end(sequence, child)
        if ended is None:
            return False
        self._steady = None
        self._untold += ended
        if not self.view.is_live(request_id):
            self._limits.left(request_id)
        return True

    def park(self, request_id: str, reason: str, now: float) -> bool:
        """Set a waiting request aside until `wake`. False if it is not waiting."""
        self._tick(now)
        sequence, queue = self.residency.live.get(request_id), self.residency.queue
        if sequence is None or sequence not in queue or sequence.parked or not reason:
            return False
        self.residency.park(sequence, reason)
        return True

    def wake(self, request_id: str, now: float) -> bool:
        """Let a parked request wait again, in its old place. False if it is not parked."""
        self._tick(now)
        sequence = self.residency.live.get(request_id)
        if sequence is None or not sequence.parked:
            return False
        self.residency.wake(sequence)
        return True

    # -- steps --------------------------------------------------------------

    def plan(self, now: float) -> Plan:
        """Plan the next step: residents first, then as many waiting sequences as fit."""
        at = self.residency
        self._tick(now)
        at.step += 1
        at.stats.steps += 1
        for timeout in self._timeouts:
            self._end_overdue(timeout)
        if at.policy.refresh:
            at.queue.refresh()
            at.swapped.refresh()
        plan = self._plan_steady()
        if plan is None:
            plan = self._plan_anew()
            if plan.empty:
                latest = self._flight[-1] if self._flight else None
                at.cache.fences.hand_back(plan.step, latest)
                return plan
        self._flight.append(plan.step)
        return plan

    def _end_overdue(self, timeout: Timeout) -> None:
        for sequence, message in timeout(self.residency.now):
            self._untold += self._dismiss(sequence, Finish.TIMEOUT, message)

    def _plan_steady(self) -> Plan | None:
        """The same rows again, if no request could join them."""
        at, steady = self.residency, self._steady
        if steady is None or self._paused == "all":
            return None
        waiting = at.waiting
        if waiting and not self._gate_stays_shut():
            return None
        plan = steady.plan(at.step)
        if plan is not None:
            at.stats.planned += steady.size
            if waiting:
                at.journal.blocked(self._gate, at.now)
        return plan

    def _gate_stays_shut(self) -> bool:
        """Whether admission would stop as before. Steady steps free no slot and no block."""
        at, gate = self.residency, self._gate
        if gate is None or not gate.lasting:
            return False
        head = at.head(at.now)
        return head is not None and head.serial == gate.serial

    def _plan_anew(self) -> Plan:
        at = self.residency
        if self._paused == "all":
            step = self._discipline.rest(at.now)
        else:
            step = self._discipline.compose(at.now, admitting=not self._paused)
        rows = at.table.rows(step.slot, step.start, step.count, step.drafts)
        at.stats.planned += int(step.count.sum())
        at.journal.blocked(step.gate, at.now, step.passed_over)
        self._gate = step.gate
        self._steady = Steady.of(step, rows, at.table, at.cache)
        return self._told_of(step, rows)

    def _told_of(self, step: Composition, rows: Rows) -> Plan:
        """The plan, with everything that happened since the previous one."""
        at, news = self.residency, self.residency.news
        at.news = News()
        admitted = (*news.admitted, *step.admitted)
        for new in admitted:
            self._limits.left(at.table.name[new.slot])
        for slot, copies in news.copies:
            if slot >= 0:
                at.cache.fences.add_copies(at.step, copies, [int(at.table.serial[slot])])
        copies = tuple(pair for _, pairs in news.copies for pair in pairs)
        at.stats.copied_blocks += len(copies)
        return Plan(
            at.step,
            rows,
            step.start,
            step.grown,
            admitted,
            tuple(news.released),
            tuple(news.preempted),
            tuple(news.finished),
            copies,
            news.swap_out,
            news.swap_in,
            tuple(news.chosen.items()),
            step.kind,
        )

    def commit(self, plan: Plan, result: StepResult, now: float) -> Outputs:
        """Record the result of a step. Rows of sequences that have left are ignored."""
        self._tick(now)
        if not self._flight or self._flight[0] != plan.step:
            return self._commit_nothing(plan)
        steady = self._steady
        if steady is not None and plan.rows is steady.rows and steady.sampled_once(result):
            outputs = self._accounting.commit_steady(steady, result)
        else:
            outputs = self._accounting.commit(plan, result)
            self._steady = steady and steady.after(plan)
        self._flight.popleft()
        if self.residency.confirm(plan.step):
            self._gate = None  # blocks came free
        if outputs.finished or result.failed:
            self._steady = None
        return self._told(outputs) if self._untold else outputs

    def _commit_nothing(self, plan: Plan) -> Outputs:
        """Report pending finishes, if the plan is empty or was given up."""
        if plan.step > self._void_until and not plan.empty:
            raise StepError(f"step {plan.step} is not the oldest in flight: {list(self._flight)}")
        return self._told(NO_OUTPUTS)

    def fail(self, plan: Plan, now: float, message: str = "the step failed") -> Outputs:
        """End every request with work in flight with an error, after the device failed."""
        at = self.residency
        for slot in self._give_up(plan, now):
            if at.table.resident[slot]:  # it may have ended with its family
                leader = at.live[at.table.sequence(slot).id]
                self._untold += self._dismiss(leader, Finish.ERROR, message)
        return self._told(NO_OUTPUTS)

    def retry(self, plan: Plan, now: float) -> None:
        """Compute again what was in flight, after the result of a step was lost."""
        for slot in reversed(self._give_up(plan, now)):
            self._recompute(slot, "a step whose result was lost")

    def _give_up(self, plan: Plan, now: float) -> list[int]:
        """Void all steps in flight, and return the slots that had work in them."""
        self._tick(now)
        if plan.step <= self._void_until:
            return []
        if plan.step not in self._flight:
            raise StepError(f"step {plan.step} is not in flight: {list(self._flight)}")
        self._void_until = self.residency.step
        self._flight.clear()
        self._steady = None
        at = self.residency
        touched = at.in_flight()
        at.table.take_back(np.array(touched, np.intp))
        at.cache.index.retract()
        for serial in at.cache.fences.retract():
            for sequence in [one for one in at.swapped if one.serial == serial]:
                at.demote(sequence)
        return touched

    def _recompute(self, slot: int, cause: str) -> None:
        """Preempt a resident whose blocks are not to be kept."""
        if self.residency.table.resident[slot]:  # it may have gone with its family
            self.residency.preempt(slot, cause, may_swap=False)

    def _dismiss(self, sequence: Sequence, finish: Finish, message: str = "") -> list[Ended]:
        self._steady = None
        self._limits.left(sequence.id)
        return self.residency.dismiss(sequence, finish, message)

    def _told(self, outputs: Outputs) -> Outputs:
        """Add the ends that happened outside a commit and were not reported yet."""
        if not self._untold:
            return outputs
        finished = (*self._untold, *outputs.finished)
        self._untold = []
        return replace(outputs, finished=finished)

    def _tick(self, now: float) -> None:
        """Advance the clock, which never runs backwards."""
        self.residency.now = max(self.residency.now, now)

    # -- operation ----------------------------------------------------------

    def pause(self, mode: Literal["new", "all"] = "new") -> None:
        """Until `resume`, admit no request ("new") or plan nothing at all ("all")."""
        if mode not in ("new", "all"):
            raise ConfigError(f"a pause is 'new' or 'all', not {mode!r}")
        self._paused = mode
        self._gate = None

    def resume(self) -> None:
        """Undo `pause`."""
        self._paused = ""
        self._gate = None

    def drain(self) -> None:
        """Refuse new requests; open ones run to their end."""
        self._draining = True

    def reset_prefix_cache(self, reset_running_requests: bool = False, now: float = 0.0) -> bool:
        """Forget all cached content. False while running requests hold blocks of it."""
        self._tick(now)
        at = self.residency
        if reset_running_requests:
            for slot in at.table.order[::-1].tolist():
                self._recompute(slot, "a reset of the prefix cache")
                self._steady = None
            for sequence in list(at.swapped):
                at.demote(sequence)
        return at.cache.reset()

    def measure(self, rates: Rates) -> None:
        """Set the rates of recomputing and swapping that `preemption_mode="auto"` compares."""
        self.residency.swapping.rates = rates

    def measure_steps(self, times: StepTimes) -> None:
        """Set the step times by which speculation decides."""
        self.residency.speculation.measure(times)

    def close(self) -> None:
        """Write what is not written yet; a scheduler that is not recorded has nothing to write."""

    # -- asking -------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do, nothing in flight and nothing to report."""
        return not (self.residency.live or self._flight or self._untold)

    @property
    def unfinished(self) -> int:
        """Number of open requests."""
        return len(self.residency.live)

    @property
    def queue_room(self) -> int:
        """Requests that could be queued now before `max_num_queued_reqs` is reached."""
        return self._limits.room

    @property
    def stats(self) -> Stats:
        return self.residency.stats

    @property
    def gate(self) -> Gate | None:
        """Why no further request was admitted in the latest step; None if none waits."""
        return self._gate if self.residency.waiting else None

    @property
    def usage(self) -> float:
        """Share of blocks held. Cached blocks without a holder are free."""
        return self.view.kv_usage

    def cache_events(self) -> list[CacheEvent]:
        """Blocks stored and removed since the previous call."""
        events = self.residency.cache.events or []
        taken = list(events)
        events.clear()
        return taken

    def explain(self, request_id: str) -> str:
        """Describe what a request waited for and what happened to it, in sentences."""
        sequence = self.residency.live.get(request_id) or self.residency.journal.recall(request_id)
        if sequence is None:
            raise RequestError(sentences.forgotten(request_id, self.config.journal))
        return sentences.tell(sequence, self.residency)

    def why(self) -> dict[str, str]:
        """The reason for each request that got nothing in the latest step."""
        return sentences.why(self.residency)

    def snapshot(self) -> dict[str, Any]:
        """The whole state as plain data."""
        return snapshot.take(self.residency)

    def check(self) -> None:
        """Verify every invariant."""
        self.residency.check()
        self._limits.check(self.residency.live)
        assert list(self._flight) == sorted(set(self._flight))
        if self._steady is not None:
            assert self.residency.table.alive(self._steady.rows).all(), "a steady row left its slot"
