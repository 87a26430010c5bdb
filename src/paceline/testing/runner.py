"""A runner for the engine that computes at once and takes its time on a virtual clock."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from paceline.core.capabilities import Capabilities
from paceline.core.masks import TokenMasks
from paceline.core.plan import Plan, StepResult


class VirtualClock:
    """Call it for the time, in seconds. It never runs backwards."""

    def __init__(self, now: float = 0.0) -> None:
        self._now = now

    def __call__(self) -> float:
        return self._now

    def advance_to(self, time: float) -> None:
        """Move on to `time`. An earlier time changes nothing."""
        self._now = max(self._now, time)


EMPTY_STEP_S = 1e-3  # what an empty step takes if nothing else runs, so that time goes on


def one_second(plan: Plan) -> float:
    return 1.0


@dataclass(frozen=True, slots=True)
class SimulatedDevice:
    """What a device computes, and how long that takes on the virtual clock."""

    execute: Callable[[Plan], StepResult]
    step_s: Callable[[Plan], float] = one_second
    empty_step_s: float = EMPTY_STEP_S  # an empty step, while nothing else runs


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedStep:
    """A step on the device."""

    done_at: float  # seconds on the virtual clock
    result: StepResult


class SimulatedRunner:
    """The engine's `Runner` port around a function from plans to results.

    The device runs one step after another. `wait` moves the clock to the end of the oldest one.
    With `masks`, a step that wants some runs when the steps before it are committed.
    `failure` keeps what the device raised, since an engine turns any error of a runner into
    failed requests.
    """

    # A simulation takes every request; what its results contain is up to `execute`.
    capabilities = Capabilities(
        logprobs=True, prompt_logprobs=True, adapters=True, images=True, pooling=True
    )

    def __init__(self, device: SimulatedDevice, clock: VirtualClock) -> None:
        self.failure: Exception | None = None
        self.masks: TokenMasks | None = None
        self._device, self._clock = device, clock
        self._held: Plan | None = None  # launched, but not run
        self._running: deque[SimulatedStep] = deque()
        self._free_at = 0.0  # when the device has run all of them

    def launch(self, plan: Plan) -> None:
        self._run_held()
        if self._running and self.masks is not None and self.masks.wants(plan):
            self._held = plan
        else:
            self._run(plan)

    def _run_held(self) -> None:
        plan, self._held = self._held, None
        if plan is not None:
            self._run(plan)

    def _run(self, plan: Plan) -> None:
        try:
            result = self._device.execute(plan)  # an empty plan still lists released slots
        except Exception as error:
            self.failure = error
            raise
        if not plan.empty:
            self._free_at = max(self._free_at, self._clock()) + self._device.step_s(plan)
            self._running.append(SimulatedStep(self._free_at, result))
        elif not self._running:
            self._clock.advance_to(self._clock() + self._device.empty_step_s)

    def wait(self) -> StepResult:
        if not self._running:
            self._run_held()
        oldest = self._running.popleft()
        self._clock.advance_to(oldest.done_at)
        return oldest.result

    def is_lost(self) -> bool:
        """A simulated device survives every error."""
        return False

    def close(self) -> None:
        """There is no device to close."""
