"""The events of stored responses: kept while a response is generated, or made from the whole."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from msgspec import Struct, json, msgpack

from paceline.server.schemas.responses import last_event, response_event

END = b"\n\n"  # of an event
WAIT_S = 1.0  # for further events, before a reader asks again
TEXTS = {"output_text": "response.output_text", "reasoning_text": "response.reasoning_text"}


class EventBatch(Struct, frozen=True, array_like=True):
    """Events in order, the number of the last one, and whether others will follow."""

    events: bytes
    last: int
    ended: bool

    @classmethod
    def of(cls, events: Sequence[bytes], after: int, ended: bool) -> "EventBatch":
        """The events with a larger number than `after`."""
        return cls(b"".join(events[after + 1 :]), max(after, len(events) - 1), ended)

    def sent(self) -> bytes:
        """The same for another process."""
        return msgpack.encode(self)

    @classmethod
    def received(cls, sent: bytes) -> "EventBatch":
        return msgpack.decode(sent, type=cls)


class EventLog:
    """The events of a response that is generated. The number of an event is its place.

    It is used on the event loop alone.
    """

    def __init__(self) -> None:
        self.size = 0  # in bytes
        self._events: list[bytes] = []
        self._ended = False
        self._news = asyncio.Event()

    def add(self, events: bytes) -> None:
        self._events += (event + END for event in events.split(END) if event)
        self.size += len(events)
        self._tell()

    def end(self) -> None:
        """No event will follow."""
        self._ended = True
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def after(self, number: int) -> EventBatch:
        """The events after one. If there are none, wait for one, but not for long."""
        if len(self._events) <= number + 1 and not self._ended:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), WAIT_S)
        return EventBatch.of(self._events, number, self._ended)


def events_of(response: bytes) -> list[bytes]:
    """The events of a response that has ended, as if each text had come at once."""
    whole: dict[str, Any] = json.decode(response)
    begun: dict[str, Any] = {**whole, "status": "in_progress", "output": [], "usage": None}
    begun |= {"incomplete_details": None, "error": None, "completed_at": None}
    found: list[tuple[str, Mapping[str, Any]]] = [
        ("response.created", {"response": begun}),
        ("response.in_progress", {"response": begun}),
    ]
    for at, item in enumerate(whole["output"]):
        found += item_events(at, item)
    found.append((last_event(whole["status"]), {"response": whole}))
    return [response_event(kind, number, **fields) for number, (kind, fields) in enumerate(found)]


def item_events(at: int, item: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    is_call = item["type"] == "function_call"
    nothing: Mapping[str, Any] = {"arguments": ""} if is_call else {"content": []}
    empty = {**item, "status": "in_progress", **nothing}
    yield "response.output_item.added", {"output_index": at, "item": empty}
    place: dict[str, Any] = {"item_id": item["id"], "output_index": at}
    if is_call:
        text = item["arguments"]
        yield "response.function_call_arguments.delta", {**place, "delta": text}
        done = {"arguments": text, "name": item["name"]}
        yield "response.function_call_arguments.done", {**place, **done}
    for index, part in enumerate(item.get("content", ())):
        yield from part_events({**place, "content_index": index}, part)
    yield "response.output_item.done", {"output_index": at, "item": item}


def part_events(
    place: Mapping[str, Any], part: Mapping[str, Any]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    kind, text = TEXTS[part["type"]], part["text"]
    scores = {"logprobs": part["logprobs"]} if "logprobs" in part else {}
    empty: dict[str, Any] = {**part, "text": "", **({"logprobs": []} if scores else {})}
    yield "response.content_part.added", {**place, "part": empty}
    yield f"{kind}.delta", {**place, "delta": text, **scores}
    yield f"{kind}.done", {**place, "text": text, **scores}
    yield "response.content_part.done", {**place, "part": part}
