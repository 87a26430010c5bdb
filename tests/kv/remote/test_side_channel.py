"""Questions between engines: every one is answered, and nothing malformed stops the channel."""

from collections.abc import Callable, Iterator
from time import monotonic, sleep
from typing import Any

import pytest
import zmq

from paceline.kv.connector import BlockMemory
from paceline.kv.remote.agent import PeerMemory
from paceline.kv.remote.leases import Leases
from paceline.kv.remote.side_channel import Message, SideChannelClient, SideChannelServer
from tests.kv.block_array import keys_of, transfer

OWN = PeerMemory("me", "tiny", BlockMemory(4096, 3, 64), b"\0metadata")
KEYS = keys_of(1, 2)


class Ends:
    """A server and a client, served by turns."""

    def __init__(self, context: Any) -> None:
        self.leases, self.released = Leases(10.0, 4.0), list[str]()
        self.server = SideChannelServer(context, "127.0.0.1", 0, self.leases)
        self.client = SideChannelClient(context, "127.0.0.1", self.server.port)
        self.answers: list[Message] = []
        self.prepare: Callable[[], None] = lambda: None

    def asked(self, content: bytes = b"", **asked: Any) -> Message:
        self.client.ask(self.answers.append, content, **asked)
        return self.answered()

    def answered(self) -> Message:
        end = monotonic() + 30
        while not self.answers:
            assert monotonic() < end, "there is no answer"
            if not self.server.socket.closed:
                self.server.serve(OWN, self.prepare, self.released.append)
            self.client.receive()
            sleep(0.001)
        return self.answers.pop()


@pytest.fixture
def ends() -> Iterator[Ends]:
    with zmq.Context() as context:
        found = Ends(context)
        yield found
        found.client.close()
        context.destroy(linger=0)


def test_memory_is_described(ends: Ends) -> None:
    answer = ends.asked(ask="memory")
    assert PeerMemory.of(answer.header, answer.content) == OWN


def test_blocks_are_claimed_and_released(ends: Ends) -> None:
    """They may be kept in the same moment, but before they are claimed."""
    ends.prepare = lambda: ends.leases.add("a", transfer(7, KEYS, [4, 0]), monotonic())
    claim = {"ask": "claim", "request": "a", "first": 0, "end": 2}
    granted = ends.asked(KEYS[1], **claim).header
    assert (granted["read_s"], granted["blocks"]) == (4.0, [4, 0])
    assert "another prompt" in ends.asked(KEYS[0], **claim).header["error"]
    ends.client.notify(ask="release", request="a")
    ends.asked(ask="memory")
    assert ends.released == ["a"]


@pytest.mark.parametrize(
    "frames",
    [
        [b"{}"],
        [b"{", b""],
        [b"[1]", b""],
        [b"{}", b""],
        [b'{"ask": "claim"}', b""],
        [b"[" * 100_000, b""],
    ],
)
def test_what_is_malformed_is_ignored(ends: Ends, frames: list[bytes]) -> None:
    ends.client.socket.send_multipart(frames)
    assert ends.asked(ask="memory").content == OWN.metadata


def test_an_answer_without_a_question_is_ignored(ends: Ends) -> None:
    ends.asked(ask="memory")
    ends.client.socket.send_multipart([b'{"ask": "memory", "number": []}', b""])
    assert ends.asked(ask="memory").content == OWN.metadata


def test_a_lost_connection_answers_what_waits(ends: Ends) -> None:
    ends.asked(ask="memory")
    ends.client.ask(ends.answers.append, ask="memory")
    ends.server.socket.close(linger=0)
    assert "the connection was lost" in ends.answered().header["error"]
