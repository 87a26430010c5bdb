"""Drive the real engine on a virtual clock: requests arrive, steps run, idle time is skipped."""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from paceline.core.errors import StepError
from paceline.core.plan import Outputs, Plan
from paceline.core.request import Request
from paceline.engine.loop.engine import Engine
from paceline.engine.loop.ports import StepObserver, all_of
from paceline.engine.settings import EngineSettings
from paceline.sched.scheduler import Scheduler
from paceline.testing.runner import SimulatedDevice, SimulatedRunner, VirtualClock

STOP_AT_ERRORS = EngineSettings(on_failure="stop")


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedTurn:
    """One turn of the engine: the step it planned, and the step whose result it committed."""

    time: float  # seconds on the virtual clock, at the end of the turn
    planned_at: float  # seconds on the virtual clock, when the step was planned
    plan: Plan | None  # None: the engine was idle
    committed: Plan | None  # an earlier one if the pipeline is deep; None: no result yet
    outputs: Outputs | None  # of the committed step

    @property
    def is_empty(self) -> bool:
        """Was nothing launched, and is there nothing to report?"""
        launched = self.plan is not None and not self.plan.empty
        landed = self.committed is not None and not self.committed.empty
        return not (launched or landed or (self.outputs is not None and self.outputs.finished))


class Loop:
    """The engine that serves requests, with a simulated device and a virtual clock.

    With depth d the engine plans up to d steps ahead of the results it has seen. An error of the
    device, or a request that the scheduler refuses, is raised here.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        device: SimulatedDevice,
        depth: int = 1,
        observer: StepObserver | None = None,
    ) -> None:
        self.scheduler, self.clock = scheduler, VirtualClock()
        self._runner = SimulatedRunner(device, self.clock)
        self._seen = TurnObserver(self.clock)
        observers = all_of([self._seen, *([] if observer is None else [observer])])
        self._engine = Engine(scheduler, self._runner, self.clock, depth, STOP_AT_ERRORS, observers)

    def run(self, requests: Iterable[Request]) -> Iterator[SimulatedTurn]:
        """Submit each request when it arrives; turn until all have ended.

        Ends early if all that is left is parked or paused, since nothing here changes that.
        """
        empty_turns = 0
        coming = deque(sorted(requests, key=arrival))
        while coming or not self.scheduler.idle:
            if self.scheduler.idle or empty_turns > 1:
                if not coming:
                    return
                self.clock.advance_to(arrival(coming[0]))
            while coming and arrival(coming[0]) <= self.clock():
                self._engine.submit(coming.popleft())
            turn = self.turn()
            yield turn
            empty_turns = empty_turns + 1 if turn.is_empty else 0

    def turn(self, *, while_idle: bool = False) -> SimulatedTurn:
        """One turn of the engine; see `Engine.turn`."""
        self._seen.begin()
        delivery = self._engine.turn(while_idle=while_idle)
        if self._runner.failure is not None:
            raise self._runner.failure
        if self._engine.broken:
            raise StepError(self._engine.broken)
        for refused in delivery.refused if delivery is not None else ():
            raise refused.error
        return self._seen.turn()


def arrival(request: Request) -> float:
    return request.arrival or 0.0


class TurnObserver(StepObserver):
    """Keeps what the engine does in one turn."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.begin()

    def begin(self) -> None:
        self._planned_at = self._clock()
        self._plan: Plan | None = None
        self._committed: Plan | None = None
        self._outputs: Outputs | None = None

    def turn(self) -> SimulatedTurn:
        """What happened since `begin`."""
        return SimulatedTurn(
            self._clock(), self._planned_at, self._plan, self._committed, self._outputs
        )

    def planned(self, plan: Plan) -> None:
        self._plan, self._planned_at = plan, self._clock()

    def committed(self, plan: Plan, outputs: Outputs) -> None:
        self._committed, self._outputs = plan, outputs
