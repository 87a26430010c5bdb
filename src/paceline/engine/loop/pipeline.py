"""Messages to the step loop, and the steps in flight, oldest first."""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import Condition
from typing import Any, Generic, TypeVar

from paceline.core.errors import DeviceLost, QueueFull, StepError
from paceline.core.plan import Plan, StepResult
from paceline.engine.grammar.constrained_requests import ConstrainedRequests
from paceline.engine.loop.ports import Runner

T = TypeVar("T")


def silent() -> None:
    """`wait` returns anyway."""


class Inbox(Generic[T]):
    """Keeps messages in order; at most `limit` of them are requests, objects of `request`."""

    def __init__(self, limit: int, request: type[Any]) -> None:
        self._limit, self._request = limit, request
        self._changed = Condition()
        self._messages: deque[T] = deque()
        self.requests = 0  # of the messages
        self.alarm: Callable[[], None] = silent  # called with each message, on any thread

    def put(self, message: T) -> None:
        with self._changed:
            if isinstance(message, self._request):
                if self.requests >= self._limit:
                    raise QueueFull(too_many(self._limit))
                self.requests += 1
            self._messages.append(message)
            self._changed.notify()
        self.alarm()

    def drain(self, most: int | None = None) -> list[T]:
        """The oldest messages, with at most so many requests; without `most`, all messages."""
        with self._changed:
            if most is None or self.requests <= most:
                taken, self.requests = list(self._messages), 0
                self._messages.clear()
                return taken
            left, taken = self.requests - most, list[T]()
            while self.requests > left:
                taken.append(self._messages.popleft())
                self.requests -= isinstance(taken[-1], self._request)
            return taken

    def wait(self, timeout_s: float | None) -> None:
        """Return when there is a message, or after `timeout_s`."""
        with self._changed:
            if not self._messages:
                self._changed.wait(timeout_s)

    def __bool__(self) -> bool:
        return bool(self._messages)


def too_many(limit: int) -> str:
    return f"{limit} requests already wait for the engine's next turn (inbox_requests)"


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
