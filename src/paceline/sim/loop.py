"""The step loop on a virtual clock: arrive, plan, run, commit, at any pipeline depth."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from paceline.core.plan import Outputs, Plan, StepResult
from paceline.core.request import Request


class Runner(Protocol):
    """Turns plans into sampled tokens, in the order in which it gets them."""

    def run(self, plan: Plan) -> StepResult: ...


class Planner(Protocol):
    """The scheduler, or something that stands in front of it."""

    @property
    def idle(self) -> bool: ...

    def submit(self, request: Request, now: float) -> None: ...

    def plan(self, now: float) -> Plan: ...

    def commit(self, plan: Plan, result: StepResult, now: float) -> Outputs: ...


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """One turn of the loop: what was planned in it, and what came back."""

    time: float  # seconds on the virtual clock
    plan: Plan | None  # None: nothing could be planned, or the pipeline was full
    outputs: Outputs | None


NO_WORK_S = 1e-3  # what an empty step takes, so that time goes on


def one_second(plan: Plan) -> float:
    return 1.0


class Loop:
    """The real scheduler with a runner on a clock of its own.

    The device runs steps one after another; a step takes `step_s(plan)`. With depth d
    the host plans up to d steps ahead of the results it has seen.
    """

    def __init__(
        self,
        scheduler: Planner,
        runner: Runner,
        depth: int = 1,
        step_s: Callable[[Plan], float] = one_second,
    ) -> None:
        self.scheduler, self.runner, self.depth = scheduler, runner, depth
        self.now = 0.0
        self._step_s = step_s
        self._flight: deque[tuple[float, Plan, StepResult]] = deque()  # with the time it is done
        self._device_free = 0.0

    def run(self, requests: Iterable[Request]) -> Iterator[Turn]:
        """Submit each request when it arrives; turn until all have ended."""
        stalled = 0
        waiting = deque(sorted(requests, key=lambda request: request.arrival or 0.0))
        while waiting or self._flight or not self.scheduler.idle:
            while waiting and (waiting[0].arrival or 0.0) <= self.now:
                self.scheduler.submit(waiting.popleft(), self.now)
            if self.scheduler.idle and waiting:
                self.now = waiting[0].arrival or 0.0
                continue
            turn = self.turn()
            yield turn
            stalled = stalled + 1 if turn.plan is None and turn.outputs is None else 0
            if stalled > 1 and not waiting:
                return  # all that is left is parked or paused, and nobody here will change that
            if stalled > 1:
                self.now = max(self.now, waiting[0].arrival or 0.0)

    def turn(self) -> Turn:
        """Plan a step if the pipeline has room; wait for the oldest one if it has not."""
        plan = self._launch() if len(self._flight) < self.depth else None
        if plan is not None and plan.empty and not self._flight:
            outputs = self._commit_empty(plan)
            return Turn(self.now, None, outputs)
        planned = plan if plan is not None and not plan.empty else None
        outputs = None
        if planned is None or len(self._flight) == self.depth:
            done, oldest, result = self._flight.popleft()
            self.now = max(self.now, done)
            outputs = self.scheduler.commit(oldest, result, self.now)
        return Turn(self.now, planned, outputs)

    def _launch(self) -> Plan:
        plan = self.scheduler.plan(self.now)
        result = self.runner.run(plan)  # an empty plan still tells the runner who left
        if not plan.empty:
            self._device_free = max(self._device_free, self.now) + self._step_s(plan)
            self._flight.append((self._device_free, plan, result))
        return plan

    def _commit_empty(self, plan: Plan) -> Outputs | None:
        """Nothing runs and nothing can; time goes on a little, and untold ends are told."""
        self.now += NO_WORK_S
        outputs = self.scheduler.commit(plan, StepResult.of(plan, {}), self.now)
        return outputs if outputs.finished else None
