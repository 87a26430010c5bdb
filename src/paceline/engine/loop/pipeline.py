"""The steps in flight, oldest first."""

from collections import deque
from contextlib import suppress

from paceline.core.errors import DeviceLost, StepError
from paceline.core.plan import Plan, StepResult
from paceline.engine.grammar.constrained_requests import ConstrainedRequests
from paceline.engine.loop.ports import Runner

MASKED_DEPTH = 2  # a step with masks samples when the steps before it are committed


class Pipeline:
    """Holds at most `depth` steps, and two while a request has a constraint. An error of the runner
    is raised as StepError; `suspect` is the plan that failed."""

    def __init__(
        self, runner: Runner, depth: int, constrained: ConstrainedRequests | None = None
    ) -> None:
        self._runner, self._depth, self._constrained = runner, depth, constrained
        self._flight: deque[Plan] = deque()  # launched, and not waited for yet
        self.suspect: Plan | None = None

    def __len__(self) -> int:
        return len(self._flight)

    @property
    def full(self) -> bool:
        is_masked = self._constrained is not None and self._constrained.any_open
        depth = min(self._depth, MASKED_DEPTH) if is_masked else self._depth
        return len(self._flight) >= depth

    def launch(self, plan: Plan) -> None:
        self.suspect = self._flight[0] if plan.empty and self._flight else plan
        if self._constrained is not None:
            self._constrained.follow(plan)
        try:
            self._runner.launch(plan)
        except Exception as error:  # a device may fail in any way
            raise self._failure(plan, error) from error
        if not plan.empty:
            self._flight.append(plan)

    def land(self) -> tuple[Plan, StepResult]:
        """Wait for the oldest step."""
        plan = self.suspect = self._flight.popleft()
        try:
            return plan, self._runner.wait()
        except Exception as error:  # a device may fail in any way
            raise self._failure(plan, error) from error

    def abandon(self) -> None:
        """Wait for the steps in flight, and drop their results and errors."""
        while self._flight:
            self._flight.popleft()
            with suppress(Exception):
                self._runner.wait()

    def _failure(self, plan: Plan, error: Exception) -> StepError:
        kind = DeviceLost if self._runner.is_lost() else StepError
        return kind(f"step {plan.step} failed: {type(error).__name__}: {error}")
