"""The protocols of the engine: runner, clock, observer, receiver and core."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, runtime_checkable

from paceline.core.capabilities import Capabilities
from paceline.core.multimodal import ImagePrompt
from paceline.core.plan import Outputs, Plan, StepResult
from paceline.core.request import Request
from paceline.engine.loop.messages import Capacity, Delivery, Question

Clock = Callable[[], float]  # seconds, monotonic


class Runner(Protocol):
    """Turns plans into sampled tokens, in the order in which it gets them.

    Every plan is launched, and its changes to the slots take effect even if the launch raises.
    `wait` is due once for each launched plan that is not empty and whose launch did not raise; it
    returns or raises for the oldest of them.
    """

    @property
    def capabilities(self) -> Capabilities:
        """What the runner supports; the engine refuses other requests."""
        ...

    def launch(self, plan: Plan) -> None: ...

    def wait(self) -> StepResult: ...

    def is_lost(self) -> bool:
        """Whether the device can run nothing more. Called after an error; the engine stops then."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class WatchedRunner(Protocol):
    """A runner that needs other processes."""

    def watch(self, report: Callable[[str], None]) -> None:
        """Call `report`, on any thread, with the reason if one of them is gone."""
        ...


class StepObserver(Protocol):
    """Sees each step as the engine plans and commits it. It must not change the scheduler.

    A class that inherits from it defines the methods that it needs.
    """

    def planning(self) -> None:
        """The scheduler is about to plan a step."""

    def planned(self, plan: Plan) -> None:
        """The scheduler planned this step; the runner has not seen it yet."""

    def launched(self, plan: Plan) -> None:
        """The runner has this step."""

    def landed(self, plan: Plan) -> None:
        """The runner returned the result of this step."""

    def committed(self, plan: Plan, outputs: Outputs) -> None:
        """The scheduler has the result of this step."""

    def changed(self) -> None:
        """A turn has ended or a question was answered, which may have changed the scheduler."""

    def close(self) -> None:
        """The engine is closed."""


class PageFeed(Protocol):
    """Answers questions of live pages between two turns."""

    def answer(self, question: Question) -> Any: ...


class Receiver(Protocol):
    """Receives the deliveries of a core, on the core's thread."""

    def deliver(self, delivery: Delivery) -> None: ...

    def died(self, reason: str, for_good: bool) -> None:
        """The core died and its requests are lost. It is restarted unless `for_good`."""
        ...

    def health_changed(self) -> None:
        """The core, or one of its engines, is back or was lost; `Core.troubles` says which."""
        ...


class Core(Protocol):
    """A step loop on a thread or in a process; any thread may call it."""

    def ready(self) -> Capacity:
        """Wait until it is built. Raises the error if that fails."""
        ...

    def start(self, receiver: Receiver) -> None: ...

    def submit(self, request: Request, parked: str = "") -> None:
        """Submit a request; with a reason, it is parked until `wake`."""
        ...

    def abort(self, request_id: str, child: int | None = None) -> None: ...

    def park(self, request_id: str, reason: str) -> None:
        """Set a waiting request aside; ignored if it is not waiting."""
        ...

    def wake(self, request_id: str) -> None:
        """Return a parked request to its position in the queue; ignored if it is not parked."""
        ...

    def ask(self, question: Question) -> Future[Any]: ...

    def healthy(self) -> str | None: ...

    def troubles(self) -> Sequence[str]:
        """Why each of its engines is not healthy; empty for one that is."""
        ...

    def close(self) -> None: ...


class PromptImages(Protocol):
    """Reads the images of prompts, on any thread."""

    @property
    def largest(self) -> int:
        """Most embeddings that an image becomes."""
        ...

    def read(self, token_ids: Sequence[int], images: Sequence[Any]) -> ImagePrompt:
        """Insert images at their marks. RequestError if one cannot be read."""
        ...


class NotObserved(StepObserver):
    """Does nothing."""


NOT_OBSERVED = NotObserved()


class SeveralObservers(StepObserver):
    """Passes everything on to each of several observers."""

    def __init__(self, observers: Sequence[StepObserver]) -> None:
        self._observers = observers

    def planning(self) -> None:
        for one in self._observers:
            one.planning()

    def planned(self, plan: Plan) -> None:
        for one in self._observers:
            one.planned(plan)

    def launched(self, plan: Plan) -> None:
        for one in self._observers:
            one.launched(plan)

    def landed(self, plan: Plan) -> None:
        for one in self._observers:
            one.landed(plan)

    def committed(self, plan: Plan, outputs: Outputs) -> None:
        for one in self._observers:
            one.committed(plan, outputs)

    def changed(self) -> None:
        for one in self._observers:
            one.changed()

    def close(self) -> None:
        for one in self._observers:
            one.close()


def all_of(observers: Sequence[StepObserver]) -> StepObserver:
    match [one for one in observers if one is not NOT_OBSERVED]:
        case []:
            return NOT_OBSERVED
        case [one]:
            return one
        case several:
            return SeveralObservers(several)
