"""The core of another process, which several front ends share."""

from collections.abc import Sequence
from concurrent.futures import Future
from itertools import count
from threading import Lock, Thread
from typing import Any, Protocol

import zmq

from paceline.core.errors import PacelineError
from paceline.core.request import Request
from paceline.engine.loop.messages import Abort, Capacity, Park, Question, Wake
from paceline.engine.loop.ports import Receiver
from paceline.engine.loop.questions import settle
from paceline.engine.transport import wire
from paceline.engine.transport.front_end_link import (
    CoreDeath,
    CoreHealth,
    DrainFrontEnd,
    FromFrontEnd,
    FrontEndBuild,
    FrontEndReady,
    PeerAnswer,
    PeerQuestion,
    PeerVerb,
    ToFrontEnd,
    to_front_end,
)

POLL_MS = 100  # between two checks whether it is closed
FLUSH_MS = 1000  # for the last messages


class FrontEndControl(Protocol):
    """What the owner of the core asks of a front end, on the thread that reads its messages."""

    def drain(self, hurry: bool) -> None: ...

    def answer(self, verb: PeerVerb, names: tuple[str, ...]) -> Future[Any]:
        """Answer another front end about requests of this one."""
        ...


class RemoteCore:
    """See `ports.Core`. The owner of the core starts this process, builds and restarts the core,
    and reports its health.

    `build` is its first message, with the settings of this front end.
    """

    def __init__(self, address: str) -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        self._inbox = self._bound(zmq.PULL, f"{address}/in")
        self._out = self._bound(zmq.PUSH, f"{address}/out")
        build = to_front_end.decode(self._inbox.recv())
        assert isinstance(build, FrontEndBuild)
        self.build = build
        self.control: FrontEndControl | None = None  # set it before `start`
        self._sending = Lock()
        self._health = CoreHealth("", ("",) * build.capacity.engines)
        self._numbers = count()
        self._questions: dict[int, Future[Any]] = {}
        self._reader: Thread | None = None
        self._closing = False

    def _bound(self, kind: int, address: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.set_hwm(0)
        socket.bind(address)
        return socket

    def ready(self) -> Capacity:
        return self.build.capacity

    # -- for any thread -----------------------------------------------------

    def start(self, receiver: Receiver) -> None:
        self._reader = Thread(target=self._read, args=(receiver,), name="core", daemon=True)
        self._reader.start()

    def report_ready(self, error: PacelineError | None = None) -> None:
        """This front end accepts connections, or it cannot."""
        self._send(FrontEndReady(wire.EncodedError.of(error) if error else None))

    def submit(self, request: Request, parked: str = "") -> None:
        self._send(wire.EncodedRequest.of(request, parked))

    def abort(self, request_id: str, child: int | None = None) -> None:
        self._send(wire.AbortMessage(Abort(request_id, child)))

    def park(self, request_id: str, reason: str) -> None:
        self._send(wire.ParkMessage(Park(request_id, reason)))

    def wake(self, request_id: str) -> None:
        self._send(wire.WakeMessage(Wake(request_id)))

    def ask(self, question: Question) -> Future[Any]:
        number, answer = self._asked()
        self._send(wire.NumberedQuestion(number, question))
        return answer

    def ask_peers(self, verb: PeerVerb, names: tuple[str, ...]) -> Future[Any]:
        """Ask the other front ends; the answer is a list of theirs."""
        number, answer = self._asked()
        self._send(PeerQuestion(number, verb, names))
        return answer

    def healthy(self) -> str | None:
        return self._health.trouble or None

    def troubles(self) -> Sequence[str]:
        return self._health.troubles

    def close(self) -> None:
        """Leave the core; its owner keeps it."""
        self._closing = True
        if self._reader is not None:
            self._reader.join()
        with self._sending:
            self._context.destroy(linger=FLUSH_MS)

    def _asked(self) -> tuple[int, Future[Any]]:
        number, answer = next(self._numbers), Future[Any]()
        self._questions[number] = answer
        return number, answer

    def _send(self, message: FromFrontEnd) -> None:
        with self._sending:
            if not self._context.closed:
                self._out.send(wire.encoder.encode(message))  # waits for the owner to connect

    # -- the reader ---------------------------------------------------------

    def _read(self, receiver: Receiver) -> None:
        while not self._closing:
            if self._inbox.poll(POLL_MS):
                self._receive(to_front_end.decode(self._inbox.recv()), receiver)

    def _receive(self, message: ToFrontEnd, receiver: Receiver) -> None:
        match message:
            case wire.EncodedDelivery():
                receiver.deliver(wire.decode_delivery(message))
            case wire.NumberedAnswer(number, value, fault):
                settle(self._questions.pop(number), value, fault and fault.error())
            case CoreHealth():
                self._health = message
            case CoreDeath(reason, health):
                self._health = health
                receiver.died(reason, for_good=False)  # the owner ends this front end
            case PeerQuestion(number, verb, names):
                assert self.control is not None
                answer = self.control.answer(verb, names)
                answer.add_done_callback(lambda found: self._answer_peer(number, found))
            case DrainFrontEnd(hurry):
                assert self.control is not None
                self.control.drain(hurry)
            case FrontEndBuild():
                raise AssertionError("a front end is built once")

    def _answer_peer(self, number: int, found: Future[Any]) -> None:
        value = None if found.cancelled() or found.exception() else found.result()
        self._send(PeerAnswer(number, value))
