"""A core that is restarted in a new process when its process dies."""

import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from threading import Lock, Thread
from time import monotonic
from typing import Any

from paceline.core.errors import PacelineError
from paceline.core.request import Request
from paceline.engine.arguments import in_place, loaded_name, names_of
from paceline.engine.loop.messages import (
    Capacity,
    Delivery,
    EngineFailed,
    EngineUnavailable,
    Question,
)
from paceline.engine.loop.ports import Receiver
from paceline.engine.settings import CoreSettings
from paceline.engine.transport.process import ProcessCore
from paceline.engine.transport.wire import EncodedRequest

log = logging.getLogger(__name__)

# Questions that the next core is asked as well
ADAPTERS = ("load_adapter", "unload_adapter")
MODEL = ("update_weights", "sleep", "wake_up")
KEPT = (*ADAPTERS, *MODEL, "drain")


class RestartBudget:
    """Allows some restarts within a span of time."""

    def __init__(self, restarts: int, span_s: float) -> None:
        self._most, self._span_s = restarts, span_s
        self._restarts: deque[float] = deque()  # times of the latest restarts

    def take(self) -> bool:
        """Count a restart, if another one is allowed."""
        now = monotonic()
        while self._restarts and now - self._restarts[0] > self._span_s:
            self._restarts.popleft()
        if len(self._restarts) >= self._most:
            return False
        self._restarts.append(now)
        return True


class RestartingCore:
    """See `ports.Core`. While `_trouble` is not empty there is no core, and requests are refused.

    The requests of a core that dies are lost, unless its receiver submits them again. The core is
    restarted while the budget allows it.
    """

    def __init__(self, make: Callable[[], ProcessCore], settings: CoreSettings) -> None:
        self._make = make
        self._budget = RestartBudget(settings.restarts, settings.core_restart_span_s)
        self._lock = Lock()
        self._trouble = ""
        self._closing = False
        self._controls: dict[str, Question] = {}  # that the next core is asked, by their subject
        self._first_adapters: Future[Any] | None = None  # of a core at its start; None: not asked
        self._receiver: Receiver | None = None
        self._replacing: Thread | None = None
        self._core = make()

    # -- for any thread -----------------------------------------------------

    def ready(self) -> Capacity:
        return self._core.ready()

    def start(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._core.start(self)

    def submit(self, request: Request, parked: str = "") -> None:
        self._present().submit(request, parked)

    def forward(self, message: EncodedRequest) -> None:
        self._present().forward(message)

    def abort(self, request_id: str, child: int | None = None) -> None:
        self._core.abort(request_id, child)

    def park(self, request_id: str, reason: str) -> None:
        self._core.park(request_id, reason)

    def wake(self, request_id: str) -> None:
        self._core.wake(request_id)

    def ask(self, question: Question) -> Future[Any]:
        core = self._present()
        if question.verb not in KEPT:
            return core.ask(question)
        if self._first_adapters is None and question.verb in ADAPTERS:
            self._first_adapters = core.ask(Question("adapters"))
        answer = core.ask(question)
        answer.add_done_callback(lambda found: self._keep_successful(question, found))
        return answer

    def _keep_successful(self, question: Question, answer: Future[Any]) -> None:
        if not answer.cancelled() and answer.exception() is None:
            self.keep(question)

    def keep(self, question: Question, ask: bool = False) -> None:
        """Ask the next core this after its start; with `ask`, the present one too."""
        subject = subject_of(question)
        with self._lock:
            self._controls.pop(subject, None)
            self._controls[subject] = for_a_new_core(question)
            present = not self._trouble
            if present:
                self._forget_defaults()
        if ask and present:
            with suppress(EngineFailed):
                self._core.ask(question)

    def _forget_defaults(self) -> None:
        """Drop what the next core does by itself."""
        kept = self._controls.items()
        self._controls = {name: one for name, one in kept if not self._is_default(one)}

    def _is_default(self, question: Question) -> bool:
        first = self._first_adapters
        if question.verb != "unload_adapter" or first is None or not first.done():
            return question.verb in ("resume", "wake_up")
        return first.exception() is None and question.argument not in names_of(first.result())

    def healthy(self) -> str | None:
        return self._trouble or self._core.healthy()

    def troubles(self) -> tuple[str]:
        return (self.healthy() or "",)

    def close(self) -> None:
        with self._lock:
            self._closing, core = True, self._core
        core.close()
        if self._replacing is not None:
            self._replacing.join()

    @property
    def pid(self) -> int:
        return self._core.pid

    def _present(self) -> ProcessCore:
        if self._trouble:
            raise EngineUnavailable(self._trouble)
        return self._core

    # -- from the thread of the core ----------------------------------------

    def deliver(self, delivery: Delivery) -> None:
        assert self._receiver is not None
        self._receiver.deliver(delivery)

    def health_changed(self) -> None:
        """A core with one engine reports nothing but its death."""

    def died(self, reason: str, for_good: bool) -> None:
        with self._lock:
            if self._closing or self._trouble:
                return
            again = self._budget.take()
            self._trouble = f"{reason}; it is being restarted" if again else reason
        self._report(reason, for_good=not again)
        if again:
            self._replacing = Thread(target=self._replace, name="restart", daemon=True)
            self._replacing.start()

    def _report(self, reason: str, for_good: bool) -> None:
        log.error("%s", reason)
        assert self._receiver is not None
        self._receiver.died(reason, for_good)

    # -- a thread of its own ------------------------------------------------

    def _replace(self) -> None:
        """Build a new core, and try again if that fails."""
        while (reason := self._rebuild()) is not None:
            with self._lock:
                if self._closing:
                    return
                again = self._budget.take()
                self._trouble = f"{reason}; it is being restarted" if again else reason
            self._report(reason, for_good=not again)
            if not again:
                return

    def _rebuild(self) -> str | None:
        """Returns None, or why the new core cannot be built."""
        try:
            self._core.close()
            core = self._make()
            with self._lock:
                self._core, closing = core, self._closing
            if closing:
                core.close()
                return None
            core.ready()
        except (PacelineError, OSError) as error:  # there may be no memory for a new process
            return str(error)
        core.start(self)  # before a request can be submitted
        asked: dict[str, Question] = {}
        while isinstance(later := self._admit(core, asked), dict):
            for question in later.values():
                try:
                    core.ask(question).result()
                except PacelineError as error:  # files may be gone: requests for them are refused
                    if question.verb == "update_weights":
                        return f"the weights of the engine that died cannot be loaded: {error}"
                    log.warning("the new engine refuses %s: %s", question.verb, error)
            asked |= later
        if later is None:
            log.warning("the engine has been restarted")
            assert self._receiver is not None
            self._receiver.health_changed()
        return later

    def _admit(
        self, core: ProcessCore, asked: dict[str, Question]
    ) -> dict[str, Question] | str | None:
        """Accept requests from now on. Returns what the new core has not been asked yet, or why it
        is dead."""
        with self._lock:
            later = {
                subject: question
                for subject, question in self._controls.items()
                if asked.get(subject) is not question
            }
            if later:
                return later
            dead = core.healthy()  # it may have died before the start
            self._trouble = dead or ""
            if not dead:
                self._forget_defaults()
        return dead


def subject_of(question: Question) -> str:
    """What a question changes: the latest question about it counts."""
    match question.verb:
        case "pause" | "resume":
            return "pause"
        case "drain":
            return "drain"
        case "update_weights":
            return "weights"
        case "sleep" | "wake_up":
            return "sleep"
        case _:
            return f"adapter {loaded_name(question)}"


def for_a_new_core(question: Question) -> Question:
    """A new core may have loaded another adapter of that name at its start, by its settings."""
    return in_place(question) if question.verb == "load_adapter" else question
