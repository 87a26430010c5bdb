"""What the engine needs of others: a device, a clock, and somewhere to send its words."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

from paceline.core.errors import PacelineError
from paceline.core.plan import Plan, StepResult
from paceline.core.request import Request
from paceline.engine.api import Piece, RequestOutput
from paceline.engine.core.messages import Capacity, Delivery, Question

Clock = Callable[[], float]  # seconds, never backwards


class Runner(Protocol):
    """Turns plans into sampled tokens, in the order in which it gets them.

    Every plan is launched, and takes effect on who is where even if it raises. `wait` is due
    once for each launched plan that is not empty and whose launch did not raise; it returns or
    raises for the oldest of them.

    One with an attribute `scores_prompts` that is true tells `prompt` in its results. Where there
    is none, requests that ask for log-probabilities of their prompt are refused. One whose device
    can be lost has a method `is_lost`, which is asked after an error; the engine stops then.
    """

    def launch(self, plan: Plan) -> None: ...

    def wait(self) -> StepResult: ...

    def close(self) -> None: ...


class Sink(Protocol):
    """Where the words of one request go: pieces, then one `close`; or one `refuse` and nothing."""

    def put(self, piece: Piece) -> None: ...

    def close(self, output: RequestOutput) -> None: ...

    def refuse(self, error: PacelineError) -> None: ...


class Receiver(Protocol):
    """Hears of everything that a core does, on the core's thread."""

    def deliver(self, delivery: Delivery) -> None: ...

    def died(self, reason: str, for_good: bool) -> None:
        """Its requests are lost; unless it is for good, it will take others later."""
        ...


class Core(Protocol):
    """A step loop that runs by itself, on a thread or in a process; any thread may call."""

    def ready(self) -> Capacity:
        """Wait until it is built. Raises what went wrong if it cannot be."""
        ...

    def start(self, receiver: Receiver) -> None: ...

    def submit(self, request: Request) -> None: ...

    def abort(self, request_id: str, child: int | None = None) -> None: ...

    def ask(self, question: Question) -> Future[Any]: ...

    def healthy(self) -> str | None: ...

    def close(self) -> None: ...
