"""The step loop on a thread of its own."""

import gc
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from threading import Lock, Thread
from typing import Any

from paceline.core.request import Request
from paceline.engine.loop.engine import Engine
from paceline.engine.loop.messages import Capacity, EngineFailed, PendingQuestion, Question
from paceline.engine.loop.ports import Receiver
from paceline.engine.loop.turn_times import StallDetector
from paceline.engine.transport.wire import EncodedRequest

CLOSE_S = 10.0  # for the step in flight to finish
SHUT_DOWN = "the engine is shut down"


class ThreadCore:
    """Runs from `start` to `close`, or to the first internal error. Then it releases the engine,
    and every further request or question raises EngineFailed."""

    def __init__(self, engine: Engine) -> None:
        self._engine: Engine | None = engine  # None after its end
        self._capacity = engine.capacity
        self._stalls = StallDetector(engine.settings.stall_s)
        self._closing = False
        self._death = ""  # why it ended
        self._lock = Lock()  # so that each question is either answered or refused
        self._questions: set[Future[Any]] = set()
        self._thread: Thread | None = None

    def ready(self) -> Capacity:
        return self._capacity

    def start(self, receiver: Receiver) -> None:
        self._thread = Thread(target=self._run, args=(receiver,), name="engine", daemon=True)
        self._thread.start()

    def submit(self, request: Request, parked: str = "") -> None:
        engine = self._running()
        self._stalls.submitted(request.id, request.handle, parked)
        try:
            engine.submit(request, parked)
        except BaseException:
            self._stalls.ended(request.id)
            raise

    def forward(self, message: EncodedRequest) -> None:
        self.submit(message.request(), message.parked)

    def abort(self, request_id: str, child: int | None = None) -> None:
        if engine := self._engine:
            engine.abort(request_id, child)

    def park(self, request_id: str, reason: str) -> None:
        if engine := self._engine:
            engine.park(request_id, reason)
            self._stalls.parked(request_id)

    def wake(self, request_id: str) -> None:
        if engine := self._engine:
            self._stalls.woken(request_id)
            engine.wake(request_id)

    def ask(self, question: Question) -> Future[Any]:
        answer: Future[Any] = Future()
        with self._lock:
            engine = self._running()
            self._questions.add(answer)
        answer.add_done_callback(self._questions.discard)
        engine.ask(PendingQuestion(question, answer))
        self._stalls.asked(question)
        return answer

    def healthy(self) -> str | None:
        engine = self._engine
        if self._death or engine is None:
            return self._death or SHUT_DOWN
        return engine.broken or self._stalls.stalled()

    def troubles(self) -> tuple[str]:
        return (self.healthy() or "",)

    def close(self) -> None:
        """Wait for the step in flight, for at most CLOSE_S."""
        self._closing = True
        if (engine := self._engine) is not None:
            engine.nudge()
            if self._thread is None:
                self._release(engine)
        if self._thread is not None:
            self._thread.join(CLOSE_S)
        self._die(SHUT_DOWN)
        del engine
        gc.collect()  # the captured graphs of a runner refer back to it

    def _running(self) -> Engine:
        engine = self._engine
        if self._death or engine is None:
            raise EngineFailed(self._death or SHUT_DOWN)
        return engine

    def _run(self, receiver: Receiver) -> None:
        engine = self._running()
        try:
            while not self._closing:
                delivery = engine.turn()
                if delivery is not None:
                    self._stalls.delivered(delivery)
                    receiver.deliver(delivery)
                engine.rest()
        except Exception as error:  # noqa: BLE001 - callers must not wait after any error
            self._die(f"the engine has died: {type(error).__name__}: {error}")
            receiver.died(self._death, for_good=True)
        finally:
            self._release(engine)

    def _release(self, engine: Engine) -> None:
        engine.close()
        self._engine = None

    def _die(self, reason: str) -> None:
        with self._lock:
            self._death = self._death or reason
            questions = list(self._questions)
        for answer in questions:
            with suppress(InvalidStateError):  # it was answered or cancelled just now
                answer.set_exception(EngineFailed(self._death))
