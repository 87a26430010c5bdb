"""What a client gets if the replica that responds dies."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from ray.exceptions import ActorDiedError
from starlette.types import Message

from paceline.engine.api import EngineFailed
from paceline.integrations.ray.entry import DIED, ResponseSender

EVENTS = [(b"content-type", b"text/event-stream")]


class DyingReplica:
    """Sends some messages, and dies."""

    def __init__(self, *messages: Message) -> None:
        self._messages = messages
        self.cancelled = False

    async def __aiter__(self) -> AsyncIterator[list[Message]]:
        for one in self._messages:
            yield [one]
        raise ActorDiedError

    def cancel(self) -> None:
        self.cancelled = True


def passed_on(path: str, *messages: Message) -> tuple[bool, list[Any]]:
    """Whether the response is done, and what was sent."""
    sent: list[Any] = []

    async def send(message: Message) -> None:
        sent.append(message)

    replica = DyingReplica(*messages)
    done = asyncio.run(ResponseSender(path, send).pass_on(replica))
    assert replica.cancelled
    return done, sent


def start(headers: list[tuple[bytes, bytes]]) -> Message:
    return {"type": "http.response.start", "status": 200, "headers": headers}


def part(body: bytes) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": True}


def test_nothing_is_sent_before_the_body_begins() -> None:
    assert passed_on("/v1/completions", start(EVENTS)) == (False, [])


@pytest.mark.parametrize(
    ("path", "place"),
    [("/v1/completions", ("error",)), ("/v1/messages", ("error",)), ("/v1/responses", ())],
)
def test_a_stream_ends_with_an_error(path: str, place: tuple[str, ...]) -> None:
    done, (_, first, last) = passed_on(path, start(EVENTS), part(b"data: 1\n\n"))
    assert (done, first["body"], last["more_body"]) == (True, b"data: 1\n\n", False)
    found = json.loads(last["body"].partition(b"data: ")[2])
    for name in place:
        found = found[name]
    assert found["message"] == DIED


def test_another_response_has_no_end() -> None:
    with pytest.raises(EngineFailed, match="died"):
        passed_on("/v1/completions", start([]), part(b"{"))
