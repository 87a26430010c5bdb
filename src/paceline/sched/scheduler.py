"""Plan steps and commit their results."""

from collections import deque
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from paceline.core.capabilities import StepCost, StepTimes
from paceline.core.errors import ConfigError, PluginError, RequestError, StepError
from paceline.core.events import CacheEvent
from paceline.core.plan import NO_OUTPUTS, Ended, Outputs, Plan, StepResult
from paceline.core.request import Finish, Request, Sequence
from paceline.core.settings.config import Config
from paceline.kv.connector import Connector
from paceline.sched import view as snapshot
from paceline.sched.commit.accounting import Accounting
from paceline.sched.components import SchedulerComponents
from paceline.sched.explain import sentences
from paceline.sched.explain.journal import Gate
from paceline.sched.groups.forks import ChildAborts
from paceline.sched.groups.group import SequenceGroup
from paceline.sched.lifecycle import timeouts
from paceline.sched.lifecycle.submit_checks import fitting_limit
from paceline.sched.lifecycle.timeouts import QueueLimits, Timeout
from paceline.sched.planner import Planner
from paceline.sched.stats import Stats
from paceline.sched.transfers.connector_link import check_connector
from paceline.sched.transfers.swapping import Rates
from paceline.sched.view import SchedulerView


class Scheduler:
    """Plans each step with `plan()` and takes its result with `commit()`.

    Results are committed in the order of the plans. Committing an empty plan is allowed; it
    reports pending finishes. Call `plan()` again before `commit()` to have several steps in
    flight. `now` is a time in seconds, on any clock.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.components = components = SchedulerComponents.of(config)
        self.state = state = components.state
        self.view = SchedulerView(state)
        self._limits = QueueLimits(config.queue, self.view)
        self._timeouts = timeouts.load(state.policy, self._limits, state.live)
        self._planner = Planner(config, components, self._limits)
        self._accounting = Accounting(components)
        self._child_aborts = ChildAborts(components)
        self._flight: deque[int] = deque()  # steps planned and not committed
        self._void_until = 0  # this step and all before it were given up
        self._serials = 0
        self._unreported: list[Ended] = []  # finished requests that no commit has reported

    @classmethod
    def create(cls, **settings: Any) -> "Scheduler":
        """Build a scheduler from settings by name: `Scheduler.create(max_num_seqs=8)`."""
        return cls(Config.of(**settings))

    # -- requests -----------------------------------------------------------

    def submit(self, request: Request, now: float, parked: str = "") -> None:
        """Queue a request, or park it for a reason. RequestError if it can never run."""
        self._tick(now)
        limit = self._admissible(request)
        arrival = self.state.now if request.arrival is None else request.arrival
        sequence = Sequence(request, self._serials, limit, arrival, request.known(0))
        if request.width > 1:
            self.state.sequence_groups[request.id] = SequenceGroup.of(sequence)
        self._serials += request.width
        try:
            self.components.arrivals.enter(sequence, parked)
        except PluginError:
            self.components.departures.forget(sequence)
            raise
        self._limits.entered(request, self.state.now)

    def _admissible(self, request: Request) -> int:
        """The most tokens that the request can have. RequestError if it can never run."""
        state, unreported = self.state, self._unreported
        if request.id in state.live or (
            unreported and request.id in [end.request_id for end in unreported]
        ):
            raise RequestError(f"request id {request.id!r} is in use; give another one")
        if twin := state.sequence_groups.namesake(request, state.live):
            raise RequestError(
                f"request ids {request.id!r} and {twin!r} would name the same sequence; "
                "give another one"
            )
        if not request.generated:  # otherwise another engine has accepted it
            self._limits.refuse_excess(request)
        return fitting_limit(request, self.config, state.cache)

    def abort(self, request_id: str, now: float, child: int | None = None) -> bool:
        """End a request in any state, or one of its `n` children. False if it is not open.
        RequestError for a child of a request that reports only its best sequences."""
        self._tick(now)
        sequence = self.state.live.get(request_id)
        if sequence is None:
            return False
        if child is None:
            self._dismiss(sequence, Finish.ABORT)
            return True
        if (ended := self._child_aborts.end(sequence, child)) is None:
            return False
        self._planner.steady = None
        self._unreported += ended
        if not self.view.is_live(request_id):
            self._limits.left(request_id)
        return True

    def park(self, request_id: str, reason: str, now: float) -> bool:
        """Set a waiting request aside until `wake`. False if it is not waiting."""
        self._tick(now)
        sequence = self.state.live.get(request_id)
        is_asked = bool(reason)
        return is_asked and sequence is not None and self.components.arrivals.park(sequence, reason)

    def wake(self, request_id: str, now: float) -> bool:
        """Put a parked request back into its old queue position. False if it is not parked."""
        self._tick(now)
        sequence = self.state.live.get(request_id)
        return sequence is not None and self.components.arrivals.wake(sequence)

    # -- steps --------------------------------------------------------------

    def plan(self, now: float) -> Plan:
        """Plan the next step: residents first, then as many waiting sequences as fit."""
        state = self.state
        self._tick(now)
        state.step += 1
        state.stats.steps += 1
        if state.link.connector is not None:
            self._settle_transfers()
        for timeout in self._timeouts:
            self._end_overdue(timeout)
        if state.policy.refresh:
            state.queue.refresh()
            state.swapped.refresh()
        plan = self._planner.plan()
        if plan.empty:
            state.cache.fences.hand_back(plan.step, self._flight[-1] if self._flight else None)
        else:
            self._flight.append(plan.step)
        if state.link.connector is not None:
            state.link.begin_loads(self._flight)
        return plan

    def _settle_transfers(self) -> None:
        """Process the transfers that ended since the previous step."""
        if ended := self.state.link.poll():
            self._planner.gate = None  # blocks were freed
        for sequence, message in self.components.loads.settle(ended):
            self._unreported += self._dismiss(sequence, Finish.ERROR, message)

    def _end_overdue(self, timeout: Timeout) -> None:
        for sequence, message in timeout(self.state.now):
            self._unreported += self._dismiss(sequence, Finish.TIMEOUT, message)

    def commit(self, plan: Plan, result: StepResult, now: float) -> Outputs:
        """Take the result of a step. Rows of sequences that have left are ignored."""
        state = self.state
        self._tick(now)
        if not self._flight or self._flight[0] != plan.step:
            return self._commit_nothing(plan)
        steady = self._planner.steady
        if steady is not None and plan.rows is steady.rows and steady.sampled_once(result):
            outputs = self._accounting.commit_steady(steady, result)
        else:
            outputs = self._accounting.commit(plan, result)
            self._planner.steady = steady and steady.after(plan)
        self._flight.popleft()
        state.times.committed(plan, state.now)
        if state.link.connector is not None:
            state.link.begin_loads(self._flight)
            state.stores.committed(plan.step)
        freed = state.cache.confirm(plan.step)
        if state.cache.tables.slides:
            freed |= state.prefixes.give_back_unread(plan.rows.slot)
        if freed:
            self._planner.gate = None
        if state.cache.events is not None:
            state.prefixes.seal_computed()  # to report them in cache events
        if outputs.finished or result.failed or result.forced:
            self._planner.steady = None
        return self._with_unreported(outputs) if self._unreported else outputs

    def _commit_nothing(self, plan: Plan) -> Outputs:
        """Report pending finishes; the plan must be empty or given up."""
        if plan.step > self._void_until and not plan.empty:
            raise StepError(f"step {plan.step} is not the oldest in flight: {list(self._flight)}")
        return self._with_unreported(NO_OUTPUTS)

    def fail(self, plan: Plan, now: float, message: str = "the step failed") -> Outputs:
        """End every request with work in flight with an error after the device failed."""
        state = self.state
        for slot in self._give_up(plan, now):
            if state.table.resident[slot]:  # it may have left with its group
                leader = state.live[state.table.sequence(slot).id]
                self._unreported += self._dismiss(leader, Finish.ERROR, message)
        return self._with_unreported(NO_OUTPUTS)

    def stop(self, now: float, message: str) -> Outputs:
        """Give up the steps in flight and end every request with an error."""
        self._tick(now)
        state = self.state
        self._void_until = state.step
        self._flight.clear()
        for sequence in list(state.live.values()):
            self._unreported += self._dismiss(sequence, Finish.ERROR, message)
        state.images.cache.retract()
        state.cache.index.retract()
        state.states.retract()
        state.cache.fences.retract()
        return self._with_unreported(NO_OUTPUTS)

    def retry(self, plan: Plan, now: float) -> None:
        """Recompute the steps in flight after the result of one was lost."""
        for slot in reversed(self._give_up(plan, now)):
            self._recompute(slot, "a step whose result was lost")

    def _give_up(self, plan: Plan, now: float) -> list[int]:
        """Give up all steps in flight; returns the slots that had work in them."""
        self._tick(now)
        if plan.step <= self._void_until:
            return []
        if plan.step not in self._flight:
            raise StepError(f"step {plan.step} is not in flight: {list(self._flight)}")
        self._void_until = self.state.step
        self._flight.clear()
        self._planner.steady = None
        state = self.state
        touched = state.in_flight()
        state.table.take_back(np.array(touched, np.intp))
        state.images.cache.retract()
        state.cache.index.retract_in_flight(touched)
        state.states.distrust(touched)
        state.states.retract()
        for serial in state.cache.fences.retract():
            for sequence in [one for one in state.swapped if one.serial == serial]:
                self.components.departures.demote(sequence)
        return touched

    def _recompute(self, slot: int, cause: str) -> None:
        """Preempt a resident without keeping its blocks."""
        if self.state.table.resident[slot]:  # it may have left with its group
            self.components.departures.preempt(slot, cause, may_swap=False)

    def _dismiss(self, sequence: Sequence, finish: Finish, message: str = "") -> list[Ended]:
        self._planner.steady = None
        self._limits.left(sequence.id)
        return self.components.departures.dismiss(sequence, finish, message)

    def _with_unreported(self, outputs: Outputs) -> Outputs:
        """Add the requests that ended outside a commit."""
        if not self._unreported:
            return outputs
        finished = (*self._unreported, *outputs.finished)
        self._unreported = []
        return replace(outputs, finished=finished)

    def _tick(self, now: float) -> None:
        """Advance the clock, which never runs backwards."""
        self.state.now = max(self.state.now, now)

    # -- operation ----------------------------------------------------------

    def pause(self, mode: Literal["new", "all"] = "new") -> None:
        """Until `resume`, admit no request ("new") or plan nothing at all ("all")."""
        if mode not in ("new", "all"):
            raise ConfigError(f"a pause is 'new' or 'all', not {mode!r}")
        self._planner.paused = mode
        self._planner.gate = None

    def resume(self) -> None:
        """Undo `pause`."""
        self._planner.paused = ""
        self._planner.gate = None

    @property
    def paused(self) -> str:
        """The mode of the pause; "" if the scheduler is not paused."""
        return self._planner.paused

    def drain(self) -> None:
        """Refuse new requests; open ones run to their end."""
        self._limits.draining = True

    def reset_prefix_cache(self, reset_running_requests: bool = False, now: float = 0.0) -> bool:
        """Forget all cached content. False while running requests hold blocks of it."""
        cause = "a reset of the prefix cache" if reset_running_requests else ""
        return self._empty_cache(cause, now) and self.state.link.clear()

    def use_weights(self, fingerprint: str, now: float = 0.0) -> bool:
        """Forget all KV, and name new KV by weights with this fingerprint. Open requests are
        computed again. No step may be in flight. False while a transfer holds blocks: retry."""
        if not self._empty_cache("other weights", now):
            return False
        self.state.use_weights(fingerprint)
        return True

    def _empty_cache(self, cause: str, now: float) -> bool:
        """Forget all cached KV; with a cause, preempt the residents first."""
        self._tick(now)
        if cause:
            self._planner.steady = None
            self.components.departures.vacate_all(cause)
        if self.state.link.connector is not None:
            self._settle_transfers()
        return self.state.cache.reset()

    def connect(self, connector: Connector) -> None:
        """Load and store KV with a connector. Call this before the first request. ConfigError
        without `enable_prefix_caching`, and with groups or states that it does not transfer."""
        check_connector(connector, self.config.cache)
        self.state.link.connect(connector)
        self.state.states.before_end = int(self.state.link.role == "kv_producer")

    def check_transfer(self, request: Request) -> None:
        """RequestError if a request asks for a transfer that the connector cannot make."""
        self.state.link.check(request)

    def measure(self, rates: Rates) -> None:
        """Set the rates of recomputing and swapping that `preemption_mode="auto"` compares."""
        self.state.swapping.rates = rates

    def measure_steps(self, times: StepTimes) -> None:
        """Set the step times by which speculation decides."""
        self.state.speculation.measure(times)
        self.state.times.seed(times)

    def measure_cost(self, cost: StepCost) -> None:
        """Set or change the cost of a position, which `max_step_s` needs. Steps correct it."""
        self.state.times.seed_cost(cost)

    def close(self) -> None:
        """Close the connector. A recorded scheduler also ends its recording."""
        self.state.link.close()

    # -- asking -------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Is there nothing to do, nothing in flight and nothing to report?"""
        return not (self.state.live or self._flight or self._unreported)

    @property
    def unfinished(self) -> int:
        """Number of open requests."""
        return len(self.state.live)

    @property
    def queue_room(self) -> int:
        """Requests that could be queued now before `max_num_queued_reqs` is reached."""
        return self._limits.room

    @property
    def stats(self) -> Stats:
        return self.state.stats

    @property
    def gate(self) -> Gate | None:
        """Why the latest step admitted no further request; None if none waits."""
        return self._planner.gate if self.state.waiting else None

    @property
    def usage(self) -> float:
        """Share of blocks that are held. Cached blocks without a holder count as free."""
        return self.view.kv_usage

    def cache_events(self) -> list[CacheEvent]:
        """Blocks stored and removed since the previous call."""
        return self.state.cache.taken_events()

    def explain(self, request_id: str) -> str:
        """Describe the waits and events of a request in sentences."""
        sequence = self.state.live.get(request_id) or self.state.journal.recall(request_id)
        if sequence is None:
            raise RequestError(sentences.forgotten(request_id, self.config.journal))
        return sentences.tell(sequence, self.state)

    def why(self) -> dict[str, str]:
        """Why requests got nothing in the latest step, by request id."""
        return sentences.why(self.state)

    def snapshot(self) -> dict[str, Any]:
        """The whole state as plain data."""
        return snapshot.take(self.state)

    def check(self) -> None:
        """Verify every invariant."""
        self.state.check()
        self._limits.check(self.state.live)
        assert list(self._flight) == sorted(set(self._flight))
        if self._planner.steady is not None:
            assert self.state.table.alive(self._planner.steady.rows).all(), (
                "a steady row left its slot"
            )
