"""Writes the body and the events of a response of /v1/responses."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from time import time
from typing import Any, Self

from msgspec import Struct, json, msgpack
from msgspec.structs import replace

from paceline.engine.api import RequestOutput, Stream, TextDelta
from paceline.server.errors import ErrorBody
from paceline.server.replies.event_stream import MessageLogprobs
from paceline.server.replies.reply_parsing import PLAIN_REPLY, ReplyParsing, ReplyReader
from paceline.server.schemas.completions import ChatLogprob, chat_logprobs, encode
from paceline.server.schemas.envelope import Envelope
from paceline.server.schemas.response_items import ResponseItems
from paceline.server.schemas.responses import (
    ResponseBody,
    ResponseFault,
    Status,
    item_status,
    last_event,
    response_event,
    status_of,
    usage_of,
)
from paceline.tools.calls import ContentDelta

END = b"\n\n"  # of an event
WAIT_S = 1.0  # for further events, before a reader asks again
TEXTS = {"output_text": "response.output_text", "reasoning_text": "response.reasoning_text"}


class SentToPeers(Struct, frozen=True, array_like=True):
    """What one process of a server sends to another that asks for it."""

    def sent(self) -> bytes:
        return msgpack.encode(self)

    @classmethod
    def received(cls, sent: bytes) -> Self:
        return msgpack.decode(sent, type=cls)


class EventBatch(SentToPeers, frozen=True):
    """Events in order, the number of the last one, and whether others will follow."""

    events: bytes
    last: int
    ended: bool

    @classmethod
    def of(cls, events: Sequence[bytes], after: int, ended: bool) -> "EventBatch":
        """The events with a larger number than `after`."""
        return cls(b"".join(events[after + 1 :]), max(after, len(events) - 1), ended)


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


Keep = Callable[[ResponseBody], None]
ScoreReader = Callable[[Sequence[int]], MessageLogprobs]  # of the token ids of a prompt


def scored(delta: TextDelta) -> Sequence[ChatLogprob]:
    found = chat_logprobs(delta.logprobs)
    return () if found is None else found.content


class ResponsesWriter:
    """One item after another, as they begin; events are numbered from 0 without a gap.

    `make_scores` makes what finds the log-probabilities of a message among other items; a plain
    reply needs none, because each token is of its message.
    """

    def __init__(
        self,
        envelope: Envelope,
        begun: ResponseBody,
        keep: Keep,
        reply: ReplyParsing = PLAIN_REPLY,
        make_scores: ScoreReader | None = None,
    ) -> None:
        self._envelope, self._begun, self._keep = envelope, begun, keep
        self._reply, self._make_scores = reply, make_scores
        self._items = ResponseItems(begun.id)

    def opening(self, streams: Sequence[Stream]) -> bytes:
        self._read(streams[0].prompt_token_ids)
        event = self._items.event
        begun = event("response.created", response=self._begun)
        begun += event("response.in_progress", response=self._begun)
        # Nothing but a message will follow, so it begins at once.
        return begun + self._items.put(ContentDelta("")) if self._reply.is_plain else begun

    def _read(self, prompt: Sequence[int]) -> None:
        self._reader = ReplyReader(self._reply, prompt)
        self._scores = self._make_scores and self._make_scores(prompt)

    def delta(self, part: int, delta: TextDelta) -> bytes:
        if self._reply.is_plain:
            scores = scored(delta)
            return (
                self._items.put(ContentDelta(delta.text), scores) if delta.text or scores else b""
            )
        if self._scores is None:
            return b"".join(map(self._items.put, self._reader.read(delta)))
        self._scores.add(delta)
        return b"".join(
            self._items.put(one, self._scores.of(one) if isinstance(one, ContentDelta) else ())
            for one in self._reader.read(delta)
        )

    def frame(self, part: int, index: int) -> None:
        """None: the number of an event precedes its text."""

    def closing(self, outputs: Sequence[RequestOutput]) -> bytes:
        (answer,) = outputs[0].outputs
        events = self._items.finish(item_status(answer))
        return events + self._last(self._response(outputs))

    def _last(self, whole: ResponseBody) -> bytes:
        return self._items.event(last_event(whole.status), response=whole)

    def failing(self, error: ErrorBody) -> bytes:
        detail = error.error
        if self._begun.background:
            return self.ending("failed", ResponseFault(detail.code, detail.message))
        return self._items.event(
            "error", code=detail.code, message=detail.message, param=detail.param
        )

    def keep(self, status: Status, error: ResponseFault | None = None) -> ResponseBody:
        """Keep the response as it is without output."""
        whole = replace(self._begun, status=status, error=error)
        self._keep(whole)
        return whole

    def ending(self, status: Status, error: ResponseFault | None = None) -> bytes:
        """End a response without output. It is kept, so that a client can read why."""
        whole, event = self.keep(status, error), self._items.event
        first = b"" if self._items.number else event("response.created", response=self._begun)
        return first + self._last(whole)

    def whole(self, outputs: Sequence[RequestOutput]) -> bytes:
        (output,) = outputs
        (answer,) = output.outputs
        self._read(output.prompt_token_ids)
        self.delta(0, answer)
        self._items.finish(item_status(answer))
        return encode(self._response(outputs))

    def _response(self, outputs: Sequence[RequestOutput]) -> ResponseBody:
        (output,) = outputs
        (answer,) = output.outputs
        status, incomplete = status_of(answer)
        whole = replace(
            self._begun,
            status=status,
            output=self._items.done,
            usage=usage_of(output, self._reply.reasoning_tokens(outputs)),
            incomplete_details=incomplete,
            completed_at=int(time()) if status == "completed" else None,
            timings=self._envelope.spent(outputs),
            metrics=self._envelope.metrics(outputs),
        )
        self._keep(whole)
        return whole
