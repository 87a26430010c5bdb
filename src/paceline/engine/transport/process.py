"""The step loop in another process, as its parent sees it."""

import logging
from concurrent.futures import Future
from contextlib import suppress
from itertools import count
from threading import Lock, Thread
from typing import Any

from paceline.core.errors import PacelineError
from paceline.core.request import Request
from paceline.engine.loop.messages import Abort, Capacity, EngineFailed, Park, Question, Wake
from paceline.engine.loop.ports import Receiver
from paceline.engine.loop.questions import settle
from paceline.engine.loop.turn_times import StallDetector
from paceline.engine.settings import EngineSettings
from paceline.engine.transport import wire
from paceline.engine.transport.child_process import ANYWHERE, CLOSE_S, ProcessPlace, core_process

DEFAULTS = EngineSettings()


class ProcessCore:
    """See `ports.Core`. When the process is gone, no caller waits for it.

    The process builds its engine in the background; `ready` waits for it. Requests and questions
    are sent through one socket under a lock; a thread reads the other socket.
    """

    def __init__(
        self,
        factory: str,
        model: str,
        settings: dict[str, Any],
        engine: EngineSettings = DEFAULTS,
        place: ProcessPlace = ANYWHERE,
    ) -> None:
        self._lock = Lock()
        self._death = ""  # why it ended
        self._reported = False  # does the receiver know of the death?
        self._numbers = count()
        self._questions: dict[int, Future[Any]] = {}
        self._stalls = StallDetector(engine.stall_s)
        self._receiver: Receiver | None = None
        self._capacity: Future[Capacity] = Future()
        self._process = core_process(place)
        self._send(wire.Build(factory, model, settings, engine))
        self._reader = Thread(target=self._read, name="core", daemon=True)
        self._reader.start()

    def ready(self) -> Capacity:
        """Wait until it is built. If that fails, close it and raise the error."""
        try:
            return self._capacity.result()
        except PacelineError:
            self.close()
            raise

    # -- for any thread -----------------------------------------------------

    def start(self, receiver: Receiver) -> None:
        with self._lock:
            self._receiver, dead = receiver, self._death
        if dead:
            self._report_death()

    def submit(self, request: Request, parked: str = "") -> None:
        self.forward(wire.EncodedRequest.of(request, parked))

    def forward(self, message: wire.EncodedRequest) -> None:
        self._stalls.submitted(message.id, message.handle, message.parked)  # before it can end
        try:
            if not (self._death or self._process.alive):
                raise EngineFailed(self._exit_reason())  # the reader has not noticed yet
            self._send(message)
        except BaseException:
            self._stalls.ended(message.id)
            raise

    def abort(self, request_id: str, child: int | None = None) -> None:
        with suppress(EngineFailed):  # its requests ended with the process
            self._send(wire.AbortMessage(Abort(request_id, child)))

    def park(self, request_id: str, reason: str) -> None:
        message = wire.ParkMessage(Park(request_id, reason))
        with suppress(EngineFailed):
            self._send(message)
            self._stalls.parked(request_id)

    def wake(self, request_id: str) -> None:
        with suppress(EngineFailed):
            self._stalls.woken(request_id)
            self._send(wire.WakeMessage(Wake(request_id)))

    def ask(self, question: Question) -> Future[Any]:
        number, answer = next(self._numbers), Future[Any]()
        self._questions[number] = answer
        try:
            self._send(wire.NumberedQuestion(number, question))
        except EngineFailed:
            self._questions.pop(number, None)  # the reader may have failed it already
            raise
        self._stalls.asked(question)
        return answer

    def healthy(self) -> str | None:
        if not self._capacity.done():
            return "the engine is being built"
        if not (self._death or self._process.alive):
            return self._exit_reason()  # the reader has not noticed yet
        return self._death or self._stalls.stalled()

    def troubles(self) -> tuple[str]:
        return (self.healthy() or "",)

    def close(self) -> None:
        with suppress(EngineFailed):
            self._send(wire.Close())
        if not self._capacity.done():
            self._process.kill()  # it reads no messages while it is being built
        self._process.wait(CLOSE_S)
        self._reader.join()
        self._die("the engine is shut down")
        with self._lock:
            self._process.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _send(self, message: wire.ToCore) -> None:
        with self._lock:
            if self._death:
                raise EngineFailed(self._death)
            self._process.send(wire.encoder.encode(message))

    # -- the reader ---------------------------------------------------------

    def _read(self) -> None:
        while (frame := self._process.receive()) is not None:
            message: wire.FromCore = wire.from_core.decode(frame)
            match message:
                case wire.EncodedDelivery():
                    assert not self._death, "a core that is dead has no requests"
                    delivery = wire.decode_delivery(message)
                    self._stalls.delivered(delivery)
                    assert self._receiver is not None, "a request was submitted before the start"
                    self._receiver.deliver(delivery)
                case wire.NumberedAnswer(number, value, fault):
                    if answer := self._questions.pop(number, None):  # none after its death
                        settle(answer, value, fault and fault.error())
                case wire.Died(reason):
                    # Requests move before the process is gone: its device may take long to close.
                    self._die(reason)
                    self._report_death()
                    Thread(target=self._process.wait, args=(CLOSE_S,), daemon=True).start()
                case wire.LogMessage(name, level, text):
                    logging.getLogger(name).log(level, "%s", text)
                case wire.Ready(capacity, fault):
                    settle(self._capacity, capacity, fault and fault.error())
        self._die(self._exit_reason())
        if self._process.returncode:
            self._report_death()

    def _exit_reason(self) -> str:
        code = self._process.returncode
        return (
            f"the engine's process has died with code {code}" if code else "the engine is shut down"
        )

    def _die(self, reason: str) -> None:
        """Record why the core ended, and answer no more."""
        with self._lock:
            self._death = self._death or reason
        settle(self._capacity, None, EngineFailed(self._death))
        for number in list(self._questions):
            if answer := self._questions.pop(number, None):  # none if `ask` was refused just now
                settle(answer, None, EngineFailed(self._death))

    def _report_death(self) -> None:
        """Tell the receiver, once, as soon as there is one."""
        with self._lock:
            receiver = None if self._reported else self._receiver
            self._reported = self._reported or receiver is not None
        if receiver is not None:
            receiver.died(self._death, for_good=True)
