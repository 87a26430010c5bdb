"""Messages between engines about blocks that one reads from the other, over ZMQ."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any

from paceline.core.plugins import library
from paceline.kv.remote.agent import PeerMemory
from paceline.kv.remote.leases import Leases

# A message is a JSON object and bytes. A question names what it wants in "ask"; the answer has its
# number, and "error" if something is wrong.
#
#     {"ask": "memory", "number": 0}, b""                            what is needed to read blocks
#     {"number": 0, "engine_id": …, "layout": …, "memory": …}, metadata
#     {"ask": "claim", "number": 1, "request": …, "first": 0, "end": 4}, key of the last block
#     {"number": 1, "read_s": 10.0, "blocks": […]}, b""              they are kept for so long
#     {"ask": "release", "request": …}, b""                          they are not wanted
PARTS = 2


@dataclass(frozen=True, slots=True)
class Message:
    """A JSON object and bytes."""

    header: dict[str, Any]
    content: bytes = b""

    def frames(self) -> list[bytes]:
        return [json.dumps(self.header).encode(), self.content]

    @staticmethod
    def of(frames: list[bytes]) -> "Message":
        """ValueError if it is none."""
        if len(frames) != PARTS:
            raise ValueError(f"a message has {PARTS} frames, not {len(frames)}")
        try:
            header = json.loads(frames[0])
        except RecursionError:
            raise ValueError("a message has too many brackets in each other") from None
        if not isinstance(header, dict):
            raise ValueError("a message begins with a JSON object")
        return Message(header, frames[1])  # pyright: ignore[reportUnknownArgumentType]


class SideChannelServer:
    """Answers the questions of other engines. A malformed question is ignored."""

    def __init__(self, context: Any, host: str, port: int, leases: Leases) -> None:
        zmq = library(("zmq",), "nixl")
        self._zmq, self._leases = zmq, leases
        self.socket = context.socket(zmq.ROUTER)
        self.socket.linger = 0
        try:
            self.socket.bind(f"tcp://{host}:{port or '*'}")
        except zmq.ZMQError as error:
            raise OSError(f"the side channel cannot use {host}:{port}: {error}") from None
        self.port = int(self.socket.last_endpoint.decode().rpartition(":")[2])

    def serve(
        self, memory: PeerMemory, prepare: Callable[[], None], released: Callable[[str], None]
    ) -> None:
        """Answer all questions that have arrived.

        `prepare` is called after a question has arrived and before it is answered: what was kept
        before the question was asked is known then. `released` gets the names of requests whose
        blocks are not wanted.
        """
        while True:
            try:
                sender, *frames = self.socket.recv_multipart(self._zmq.NOBLOCK)
            except self._zmq.Again:
                return
            prepare()
            try:
                question = Message.of(frames)
                answer = self._answer(question, memory, released)
            except (ValueError, KeyError, TypeError):
                continue
            if answer is not None:
                numbered = {**answer.header, "number": question.header.get("number")}
                self.socket.send_multipart([sender, *Message(numbered, answer.content).frames()])

    def _answer(
        self, question: Message, memory: PeerMemory, released: Callable[[str], None]
    ) -> Message | None:
        asked = question.header
        if asked["ask"] == "memory":
            return Message(memory.header(), memory.metadata)
        if asked["ask"] == "release":
            released(asked["request"])
            return None
        try:
            span = asked["request"], asked["first"], asked["end"]
            blocks = self._leases.claim(*span, question.content, monotonic())
        except OSError as error:
            return Message({"error": str(error)})
        return Message({"read_s": self._leases.read_s, "blocks": list(blocks)})


class SideChannelClient:
    """The connection to one other engine. Each answer is passed to the function that waits for it.

    A question whose connection is lost is answered with an error.
    """

    def __init__(self, context: Any, host: str, port: int) -> None:
        """OSError if the host is no address."""
        self._zmq = zmq = library(("zmq",), "nixl")
        self._monitored = library(("zmq.utils.monitor",), "nixl").recv_monitor_message
        self.address = f"{host}:{port}"
        self.socket = context.socket(zmq.DEALER)
        self.socket.linger = 0
        lost = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED | zmq.EVENT_CONNECT_RETRIED
        self.monitor = self.socket.get_monitor_socket(lost)
        self.sockets = self.socket, self.monitor
        try:
            self.socket.connect(f"tcp://{self.address}")
        except (zmq.ZMQError, ValueError) as error:
            self.close()
            raise OSError(f"cannot connect to {self.address!r:.100}: {error}") from None
        self._numbers = 0
        self._waiting: dict[int, Callable[[Message], None]] = {}

    def ask(self, answered: Callable[[Message], None], content: bytes = b"", **asked: Any) -> None:
        number, self._numbers = self._numbers, self._numbers + 1
        self._waiting[number] = answered
        self._send(Message({**asked, "number": number}, content))

    def notify(self, **message: Any) -> None:
        """Send a message and expect no answer."""
        self._send(Message(message))

    def _send(self, message: Message) -> None:
        try:
            self.socket.send_multipart(message.frames(), self._zmq.NOBLOCK)
        except self._zmq.Again:
            self._lose("its queue is full")

    def receive(self) -> None:
        """Pass on the answers that have arrived."""
        while self.socket.poll(0):
            frames: list[bytes] = self.socket.recv_multipart()
            try:
                answer = Message.of(frames)
            except ValueError:
                continue
            number = answer.header.get("number")
            if isinstance(number, int) and (answered := self._waiting.pop(number, None)):
                answered(answer)
        lost = False
        while self.monitor.poll(0):
            self._monitored(self.monitor)
            lost = True
        if lost:
            self._lose("the connection was lost")

    def _lose(self, reason: str) -> None:
        waiting, self._waiting = list(self._waiting.values()), {}
        for answered in waiting:
            answered(Message({"error": f"{self.address}: {reason}"}))

    def close(self) -> None:
        self.socket.disable_monitor()
        for socket in self.sockets:
            socket.close(linger=0)
