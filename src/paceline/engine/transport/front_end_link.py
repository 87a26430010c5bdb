"""A front end in a process of its own: its messages, and the core's end of the link."""

import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import count
from threading import Lock, Thread
from typing import Any, Literal

import msgspec

from paceline.engine.loop.messages import Capacity, EngineFailed
from paceline.engine.transport import wire
from paceline.engine.transport.child_process import ChildProcess
from paceline.engine.transport.process import settle
from paceline.engine.transport.wire import (
    AbortMessage,
    EncodedDelivery,
    EncodedError,
    EncodedRequest,
    NumberedAnswer,
    NumberedQuestion,
    ParkMessage,
    WakeMessage,
)

PeerVerb = Literal[
    "abort",
    "abort_all",
    "parts",
    "response",
    "events",
    "cancel",
    "remove",
    "conversation",
    "adapters",
]


class FrontEndBuild(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """The first message to a front end."""

    number: int  # of the process; no two front ends of a core have the same one
    capacity: Capacity
    settings: dict[str, Any]


class FrontEndReady(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """The first message of a front end: it accepts connections, or why it cannot."""

    fault: EncodedError | None = None


class CoreHealth(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """Why the core is not healthy, and why each of its engines is not; empty if they are."""

    trouble: str
    troubles: tuple[str, ...]


class CoreDeath(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """The core has died, and its requests are lost; its health from now on."""

    reason: str
    health: CoreHealth


class PeerQuestion(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """A question to the other front ends about requests of theirs."""

    number: int
    verb: PeerVerb
    names: tuple[str, ...]


class PeerAnswer(msgspec.Struct, tag=True, array_like=True, frozen=True):
    number: int
    value: Any


class DrainFrontEnd(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """The server shuts down: finish the open requests, or, in a hurry, end them."""

    hurry: bool = False


ToFrontEnd = (
    FrontEndBuild
    | EncodedDelivery
    | NumberedAnswer
    | CoreHealth
    | CoreDeath
    | PeerQuestion
    | DrainFrontEnd
)
FromFrontEnd = (
    FrontEndReady
    | EncodedRequest
    | AbortMessage
    | ParkMessage
    | WakeMessage
    | NumberedQuestion
    | PeerQuestion
    | PeerAnswer
)

to_front_end = msgspec.msgpack.Decoder(ToFrontEnd)
from_front_end = msgspec.msgpack.Decoder(FromFrontEnd)


log = logging.getLogger(__name__)

CLOSE_S = 10.0  # for the process to exit by itself; then it is killed

Serve = Callable[["FrontEndLink", FromFrontEnd], None]
Left = Callable[["FrontEndLink"], None]


class FrontEndLink:
    """Any thread may send. From `start` on, a thread passes every message of the process to
    `serve`, and calls `left` once, after the last one."""

    def __init__(
        self, process: ChildProcess, build: FrontEndBuild, serve: Serve, left: Left
    ) -> None:
        self.number = build.number
        self.ready: Future[None] = Future()  # until it accepts connections
        self._serve, self._left = serve, left
        self._process = process
        self._reader = Thread(target=self._read, name=f"front end {self.number}", daemon=True)
        self.send(build)

    def start(self) -> None:
        """Begin to read its messages."""
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    @property
    def is_ready(self) -> bool:
        return self.ready.done() and self.ready.exception() is None

    def send(self, message: ToFrontEnd) -> None:
        self._process.send(wire.encoder.encode(message))

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        """Wait for the process to exit, which it has been asked to do, and release it."""
        self._process.wait(CLOSE_S)
        self._reader.join()
        self._process.close()

    def _read(self) -> None:
        try:
            while (frame := self._process.receive()) is not None:
                self._receive(from_front_end.decode(frame))
        except Exception:  # its requests would wait for ever
            log.exception("a message of a front end cannot be served; its process is killed")
            self._process.kill()
            self._process.wait(CLOSE_S)
        reason = f"a front end's process has ended with code {self.returncode}"
        settle(self.ready, None, EngineFailed(reason))
        self._left(self)

    def _receive(self, message: FromFrontEnd) -> None:
        if isinstance(message, FrontEndReady):
            settle(self.ready, None, message.fault and message.fault.error())
        self._serve(self, message)


@dataclass(slots=True)
class RelayedQuestion:
    """A question that some front ends have not answered yet."""

    asker: FrontEndLink
    number: int  # that the asker gave it
    waiting: set[int]  # numbers of front ends
    answers: list[Any] = field(default_factory=list[Any])


class PeerQuestions:
    """A question is answered with a list when each front end has answered it or has left."""

    def __init__(self) -> None:
        self._numbers = count()
        self._open: dict[int, RelayedQuestion] = {}
        self._lock = Lock()

    def relay(
        self, asker: FrontEndLink, question: PeerQuestion, others: Iterable[FrontEndLink]
    ) -> None:
        asked = list(others)
        relayed = RelayedQuestion(asker, question.number, {one.number for one in asked})
        with self._lock:
            number = next(self._numbers)
            self._open[number] = relayed
        for one in asked:
            one.send(PeerQuestion(number, question.verb, question.names))
        self._finish()

    def answered(self, link: FrontEndLink, answer: PeerAnswer) -> None:
        with self._lock:
            if (relayed := self._open.get(answer.number)) is not None:
                relayed.waiting.discard(link.number)
                relayed.answers.append(answer.value)
        self._finish()

    def left(self, link: FrontEndLink) -> None:
        with self._lock:
            for relayed in self._open.values():
                relayed.waiting.discard(link.number)
        self._finish()

    def _finish(self) -> None:
        """Send the answers that are complete."""
        with self._lock:
            complete = [number for number, one in self._open.items() if not one.waiting]
            finished = [self._open.pop(number) for number in complete]
        for one in finished:
            one.asker.send(NumberedAnswer(one.number, one.answers))
