"""The step loop: inbox, plan, launch, wait, commit, outbox, at any pipeline depth."""

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Any

from paceline.core.errors import (
    ConfigError,
    DeviceLost,
    PacelineError,
    PluginError,
    RequestError,
    StepError,
)
from paceline.core.plan import NO_OUTPUTS, Ended, Outputs, Plan, StepResult
from paceline.core.request import Finish, Request
from paceline.engine.grammar.constrained_requests import ConstrainedRequests
from paceline.engine.loop import questions as queries
from paceline.engine.loop.adapters import AdapterRequests, Preparations
from paceline.engine.loop.figures import StepCounts
from paceline.engine.loop.messages import (
    Abort,
    Capacity,
    Command,
    Delivery,
    EngineFailed,
    Inbox,
    Park,
    PendingQuestion,
    Question,
    Refused,
    RequestPrepared,
    RunnerLost,
    Submit,
    Wake,
    WorkEnded,
)
from paceline.engine.loop.pipeline import Pipeline
from paceline.engine.loop.ports import NOT_OBSERVED, Clock, PageFeed, Runner, StepObserver
from paceline.engine.loop.questions import settle, when_done
from paceline.engine.loop.turn_report import TurnReport, of_live_requests
from paceline.engine.loop.upkeep import UPKEEP_VERBS, Upkeep
from paceline.engine.settings import EngineSettings
from paceline.sched.scheduler import Scheduler

log = logging.getLogger(__name__)

RETRY_S = 0.002  # between two attempts to plan while no request can run yet
PARKED_RETRY_S = 0.05  # the same while every request is parked and only deadlines can pass
ARRIVALS = 32  # requests that a turn accepts while others run; they take about a millisecond
SHORT_TURN_S = 0.02  # a turn that takes longer accepts more, in proportion
DEFAULTS = EngineSettings()


class Engine:
    """Runs one turn after another on one thread; any thread may submit, abort, park, wake and ask.

    Every submitted request is reported exactly once as refused or as ended. When a step fails, the
    requests in flight end with an error; then the engine continues, or it stops for good and ends
    the other requests too.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        clock: Clock = monotonic,
        depth: int = 1,
        settings: EngineSettings = DEFAULTS,
        observer: StepObserver | None = None,
        constrained: ConstrainedRequests | None = None,
    ) -> None:
        if depth < 1:
            raise ConfigError(f"depth is {depth}; it must be at least 1")
        self.scheduler, self.clock = scheduler, clock
        self.broken = ""  # why the engine stopped for good
        self.resting = True  # whether the latest turn found nothing to run
        self.settings, self._runner, self._observer = settings, runner, observer or NOT_OBSERVED
        self.feed: PageFeed | None = None  # None: no page can be shown what it does
        self._preparations = Preparations(constrained)
        self._pipeline = Pipeline(runner, depth, constrained)
        self._inbox = Inbox(settings.inbox_requests)
        self._counts = StepCounts()
        self._report = TurnReport()
        self._has_news = False  # whether commands were applied since the latest turn
        self.upkeep = Upkeep(scheduler, clock, self._abort_all, self.nudge)

    def serve_adapters(self, adapters: AdapterRequests) -> None:
        """Let requests name adapters. Call it before the first turn."""
        self._preparations.serve_adapters(adapters)
        adapters.news = self.nudge

    def observe(self, observer: StepObserver) -> None:
        """Show the steps from now on to another observer, between two turns or two steps."""
        self._observer = observer

    # -- for any thread -----------------------------------------------------

    def submit(self, request: Request, parked: str = "") -> None:
        """Submit a request in the next turn; with a reason, it is parked until `wake`.

        Raises QueueFull if the inbox is full, and EngineFailed if the engine has stopped.
        """
        if self.broken:
            raise EngineFailed(self.broken)
        self._inbox.put(Submit(lambda: request, parked))

    def abort(self, request_id: str, child: int | None = None) -> None:
        self._inbox.put(Abort(request_id, child))

    def park(self, request_id: str, reason: str) -> None:
        """Set a waiting request aside; ignored if it runs or has ended."""
        self._inbox.put(Park(request_id, reason))

    def wake(self, request_id: str) -> None:
        """Return a parked request to its position in the queue."""
        self._inbox.put(Wake(request_id))

    def ask(self, pending: PendingQuestion) -> None:
        """Answer a question in the next turn."""
        self._inbox.put(pending)

    def lose_runner(self, reason: str) -> None:
        """Stop for good in the next turn."""
        self._inbox.put(RunnerLost(reason))

    def nudge(self) -> None:
        """Take a turn soon, also while no request is open: work elsewhere may have ended."""
        self._inbox.put(WorkEnded())

    def call_for_messages(self, alarm: Callable[[], None]) -> None:
        """Call `alarm` for each message of another thread, for a thread that does not `rest`."""
        self._inbox.alarm = alarm

    # -- for its own thread -------------------------------------------------

    def put(self, command: Command) -> None:
        """Apply a command in the next turn. Raises QueueFull if the inbox is full."""
        self._inbox.add(command)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do and nothing to report."""
        return self.scheduler.idle and not (self._inbox or self._report)

    @property
    def room(self) -> int:
        """Requests that could be submitted now before a limit on their number is reached."""
        return min(self.settings.inbox_requests, self.scheduler.queue_room) - self._inbox.requests

    @property
    def patience_s(self) -> float | None:
        """Seconds to wait for a message before the next turn; None: until a message arrives."""
        if self._inbox or not self.resting:
            return 0.0
        if self.upkeep.polls:
            return RETRY_S
        if self.idle:
            return None
        return RETRY_S if self.scheduler.view.is_runnable else PARKED_RETRY_S

    @property
    def _arrivals(self) -> int | None:
        """Most requests to submit before the next turn, so that it is not late for those that run.

        None, all of them, while none runs.
        """
        if self.resting:
            return None
        return max(ARRIVALS, int(ARRIVALS * self._counts.turn_s / SHORT_TURN_S))

    @property
    def capacity(self) -> Capacity:
        return Capacity.of(self.scheduler.config)

    def turn(self, *, while_idle: bool = False) -> Delivery | None:
        """Read the inbox, plan a step, and wait for the oldest one once the pipeline is full.

        While requests run, a turn accepts some new ones, and the rest of the inbox waits for the
        next turn.
        An idle engine plans nothing, except with `while_idle`: then it plans an empty step.
        """
        begin = self.clock()
        for command in self._inbox.drain(self._arrivals):
            self.apply(command)
        self.upkeep.advance(len(self._pipeline))
        has_news, self._has_news = self._has_news or self.upkeep.polls, False
        if self.resting and self.scheduler.idle and not (has_news or while_idle):
            return None
        outputs, result = (NO_OUTPUTS, None) if self.broken else self._step()
        self._observer.changed()
        if outputs.finished:
            self._forget(*(end.request_id for end in outputs.finished if end.child < 0))
        now = self.clock()
        self._counts.turn_s = now - begin
        return self._report.delivery(outputs, result, now, self.scheduler, self.broken)

    def rest(self) -> None:
        """Wait for a command or for the time to retry, if the latest turn had nothing to do."""
        if (patience_s := self.patience_s) != 0.0:
            self._inbox.wait(patience_s)

    def close(self) -> None:
        self.upkeep.close()
        self._pipeline.abandon()
        self.scheduler.close()  # its connector copies blocks of the runner
        self._runner.close()
        self._preparations.close()
        self._observer.close()

    # -- commands, on its own thread ----------------------------------------

    def apply(self, command: Command) -> None:
        """Apply a command now. The next turn reports the requests that it ended."""
        self._has_news |= not isinstance(command, PendingQuestion)
        match command:
            case Submit(read, parked):
                self._submit(read(), parked)
            case Abort(request_id, None):
                self._abort(request_id)
            case Abort(request_id, child):
                with suppress(RequestError):  # a beam search has no choices to abort
                    self.scheduler.abort(request_id, self.clock(), child)
            case Park(request_id, reason):
                self.scheduler.park(request_id, reason, self.clock())
            case Wake(request_id):
                self._wake(request_id)
            case PendingQuestion():
                self._answer(command)
            case RequestPrepared(request_id):
                self._prepared(request_id)
            case RunnerLost(reason):
                self._halt_now(DeviceLost(reason))
            case WorkEnded():  # the next turn asks
                self._preparations.poll()

    def refuse(self, request_id: str, error: PacelineError) -> None:
        """Report in the next turn that a request never started."""
        self._has_news = True
        self._report.refused.append(Refused(request_id, error))

    def _abort_all(self) -> None:
        self._has_news = True
        for request_id in self.scheduler.view.live_ids():
            self._abort(request_id)

    def _abort(self, request_id: str) -> None:
        if self.scheduler.abort(request_id, self.clock()):
            self._report.ended.append(Ended(request_id, Finish.ABORT))
            self._forget(request_id)

    def _submit(self, request: Request, parked: str) -> None:
        try:
            if self.broken:
                raise EngineFailed(self.broken)
            if (refusal := self.upkeep.refusal) is not None:
                raise refusal
            self._runner.capabilities.check(request)
            self.scheduler.check_transfer(request)
            request = self._preparations.named(request)
            if needed := self._preparations.needed(request):
                self.scheduler.submit(request, self.clock(), parked or needed)
                self._preparations.begin(
                    request, lambda name: self._inbox.put(RequestPrepared(name))
                )
                self._prepared(request.id)
            else:
                self.scheduler.submit(request, self.clock(), parked)
        except PluginError as error:  # others run on: only this request was ranked wrongly
            log.error("request %r is refused: %s", request.id, error)
            self.refuse(request.id, EngineFailed(str(error)))
        except (RequestError, EngineFailed) as error:
            self.refuse(request.id, error)

    def _prepared(self, request_id: str) -> None:
        """Wake a request that has all it needs, or refuse it if something cannot be had."""
        if not self.scheduler.view.is_live(request_id):
            return
        if (error := self._preparations.refusal(request_id)) is not None:
            self._forget(request_id)
            self.scheduler.abort(request_id, self.clock())
            self.refuse(request_id, error)
        elif self._preparations.is_outdated(request_id, self.scheduler.view.parked_for(request_id)):
            self._wake(request_id)

    def _forget(self, *request_ids: str) -> None:
        """Requests have ended."""
        for request_id in request_ids:
            self._preparations.forget(request_id)

    def _wake(self, request_id: str) -> None:
        try:
            woken = self.scheduler.wake(request_id, self.clock())
        except PluginError as error:
            self._halt_now(error)
            return
        if woken and (missing := self._preparations.pending(request_id)):
            self.scheduler.park(request_id, missing, self.clock())

    def _answer(self, pending: PendingQuestion) -> None:
        if not pending.answer.set_running_or_notify_cancel():
            return
        try:
            found = self.answer(pending.question)
        except PacelineError as error:
            pending.answer.set_exception(error)
        else:
            when_done(found, partial(settle, pending.answer))

    def answer(self, question: Question) -> Any:
        """The answer, or a future with it."""
        if question.verb in queries.LIVE_VERBS:
            return queries.answer_live(self.feed, question)
        if question.verb in queries.ADAPTER_VERBS:
            return queries.answer_about(self._preparations.adapters, question)
        if question.verb in UPKEEP_VERBS:
            return self.upkeep.ask(question)
        found = queries.answer(self.scheduler, question, self.clock())
        self._observer.changed()
        if question.verb != "gauges":
            return found
        return found | self._counts.to_dict() | self._preparations.figures() | self.upkeep.figures()

    # -- a step -------------------------------------------------------------

    def _step(self) -> tuple[Outputs, StepResult | None]:
        """The outputs of a step, and its result if one was waited for."""
        try:
            if not self._pipeline.full:
                latest = self._launch()
                self.resting = not self._pipeline
                if self.resting:  # nothing runs and nothing can run, but requests may have ended
                    return self._commit(latest, StepResult.of(latest, {})), None
                if not (latest.empty or self._pipeline.full):
                    return NO_OUTPUTS, None  # the next turn plans another step before any result
            plan, result = self._pipeline.land()
            self._observer.landed(plan)
            self._counts.landed(plan, result)
            result = of_live_requests(self.scheduler.view, result)
            result = self._preparations.accepted(plan, result, self.scheduler.view)
            return self._commit(plan, result), result
        except StepError as error:
            return self._fail(error), None
        except PluginError as error:
            return self._halt(error), None

    def _launch(self) -> Plan:
        """Plan a step and launch it; an empty plan still lists the slots that were released."""
        self._observer.planning()
        plan = self.scheduler.plan(self.clock())
        self._observer.planned(plan)
        self._pipeline.launch(plan)
        self._observer.launched(plan)
        return plan

    def _commit(self, plan: Plan, result: StepResult) -> Outputs:
        outputs = self.scheduler.commit(plan, result, self.clock())
        self._observer.committed(plan, outputs)
        return outputs

    def _fail(self, error: StepError) -> Outputs:
        message = str(error)
        suspect = self._pipeline.suspect
        assert suspect is not None
        self._pipeline.abandon()
        self.resting = True
        if suspect.empty:  # requests may have ended all the same
            outputs = self._commit(suspect, StepResult.of(suspect, {}))
        else:
            outputs = self.scheduler.fail(suspect, self.clock(), message)
        if self.settings.on_failure == "stop" or isinstance(error, DeviceLost):
            return replace(outputs, finished=(*outputs.finished, *self._stop(message).finished))
        return outputs

    def _halt_now(self, error: PacelineError) -> None:
        """Stop for good outside a step. The next turn reports the requests that ended."""
        if self.broken:
            return
        outputs = self._halt(error)
        self._report.ended += outputs.finished
        self._forget(*(end.request_id for end in outputs.finished))

    def _halt(self, error: PacelineError) -> Outputs:
        """Stop for good: a policy, a limit or a discipline is wrong, and the next step would be; or
        there is no runner any more."""
        log.error("%s", error)
        self._pipeline.abandon()
        self.resting = True
        return self._stop(str(error))

    def _stop(self, reason: str) -> Outputs:
        """End all remaining requests with an error, and refuse new ones."""
        self.broken = f"the engine has stopped: {reason}"
        self.upkeep.fail(self.broken)
        return self.scheduler.stop(self.clock(), self.broken)
