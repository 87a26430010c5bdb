"""Writes the body and the events of a response of /v1/responses."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from time import time
from typing import Any

from msgspec import Struct, json, msgpack
from msgspec.structs import replace

from paceline.engine.api import RequestOutput, Stream, TextDelta
from paceline.server.errors import ErrorBody
from paceline.server.replies.event_stream import MessageLogprobs
from paceline.server.replies.reply_parsing import ReplyParsing, ReplyReader
from paceline.server.schemas.completions import ChatLogprob, chat_logprobs, encode
from paceline.server.schemas.envelope import Envelope
from paceline.server.schemas.openapi import NumberedFrame
from paceline.server.schemas.response_items import ResponseItems
from paceline.server.schemas.responses import (
    OutputMessage,
    OutputText,
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


Keep = Callable[[ResponseBody], None]
ScoreReader = Callable[[Sequence[int]], MessageLogprobs]  # of the token ids of a prompt


def scored(delta: TextDelta) -> Sequence[ChatLogprob]:
    found = chat_logprobs(delta.logprobs)
    return () if found is None else found.content


class ResponsesWriter:
    """One message with one text; events are numbered from 0 without a gap."""

    def __init__(self, envelope: Envelope, begun: ResponseBody, keep: Keep) -> None:
        self._envelope, self._begun, self._keep = envelope, begun, keep
        self._item = f"msg-{begun.id}"
        self._place = {"item_id": self._item, "output_index": 0, "content_index": 0}
        self._number = 0
        self._frame = NumberedFrame.of(self._text_event)

    def opening(self, streams: Sequence[Stream]) -> bytes:
        empty = OutputMessage(self._item, "in_progress", ())
        return (
            self._event("response.created", response=self._begun)
            + self._event("response.in_progress", response=self._begun)
            + self._event("response.output_item.added", output_index=0, item=empty)
            + self._in_text("response.content_part.added", part=OutputText(""))
        )

    def delta(self, part: int, delta: TextDelta) -> bytes:
        if delta.logprobs:
            scores = scored(delta)
            return self._in_text("response.output_text.delta", delta=delta.text, logprobs=scores)
        if not delta.text:
            return b""
        number, self._number = self._number, self._number + 1
        return self._frame.event(number, delta.text)

    def frame(self, part: int, index: int) -> None:
        """None: the number of an event precedes its text."""

    def _text_event(self, number: int, text: str) -> bytes:
        kind, place = "response.output_text.delta", self._place
        return response_event(kind, number, **place, delta=text, logprobs=())

    def closing(self, outputs: Sequence[RequestOutput]) -> bytes:
        (output,) = outputs
        item = self._message(output)
        (part,) = item.content
        return (
            self._in_text("response.output_text.done", text=part.text, logprobs=part.logprobs)
            + self._in_text("response.content_part.done", part=part)
            + self._event("response.output_item.done", output_index=0, item=item)
            + self._last(self._response(outputs, (item,)))
        )

    def _last(self, whole: ResponseBody) -> bytes:
        return self._event(last_event(whole.status), response=whole)

    def failing(self, error: ErrorBody) -> bytes:
        detail = error.error
        if self._begun.background:
            return self.ending("failed", ResponseFault(detail.code, detail.message))
        return self._event("error", code=detail.code, message=detail.message, param=detail.param)

    def keep(self, status: Status, error: ResponseFault | None = None) -> ResponseBody:
        """Keep the response as it is without output."""
        whole = replace(self._begun, status=status, error=error)
        self._keep(whole)
        return whole

    def ending(self, status: Status, error: ResponseFault | None = None) -> bytes:
        """End a response without output. It is kept, so that a client can read why."""
        whole = self.keep(status, error)
        first = b"" if self._number else self._event("response.created", response=self._begun)
        return first + self._last(whole)

    def whole(self, outputs: Sequence[RequestOutput]) -> bytes:
        (output,) = outputs
        return encode(self._response(outputs, (self._message(output),)))

    def _message(self, output: RequestOutput) -> OutputMessage:
        (answer,) = output.outputs
        text = OutputText(answer.text, logprobs=scored(answer))
        return OutputMessage(self._item, item_status(answer), (text,))

    def _response(self, outputs: Sequence[RequestOutput], items: Sequence[Struct]) -> ResponseBody:
        (output,) = outputs
        (answer,) = output.outputs
        status, incomplete = status_of(answer)
        whole = replace(
            self._begun,
            status=status,
            output=items,
            usage=usage_of(output, self._reasoning_tokens(outputs)),
            incomplete_details=incomplete,
            completed_at=int(time()) if status == "completed" else None,
            timings=self._envelope.spent(outputs),
            metrics=self._envelope.metrics(outputs),
        )
        self._keep(whole)
        return whole

    def _reasoning_tokens(self, outputs: Sequence[RequestOutput]) -> int:
        return 0

    def _in_text(self, kind: str, **fields: Any) -> bytes:
        return self._event(kind, **self._place, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        return response_event(kind, number, **fields)


class ItemsWriter(ResponsesWriter):
    """The same for replies with reasoning or calls: one item after another, as they begin."""

    def __init__(
        self,
        envelope: Envelope,
        begun: ResponseBody,
        keep: Keep,
        reply: ReplyParsing,
        scores: ScoreReader | None = None,
    ) -> None:
        """`scores` makes what finds the log-probabilities of a reply; None: they are not wanted."""
        super().__init__(envelope, begun, keep)
        self._reply, self._make_scores = reply, scores
        self._items = ResponseItems(begun.id, self._event)

    def opening(self, streams: Sequence[Stream]) -> bytes:
        self._begin(streams[0].prompt_token_ids)
        return self._event("response.created", response=self._begun) + self._event(
            "response.in_progress", response=self._begun
        )

    def _begin(self, prompt: Sequence[int]) -> None:
        self._reader = ReplyReader(self._reply, prompt)
        self._scores = self._make_scores and self._make_scores(prompt)

    def delta(self, part: int, delta: TextDelta) -> bytes:
        if self._scores is None:
            return b"".join(map(self._items.put, self._reader.read(delta)))
        self._scores.add(delta)
        return b"".join(
            self._items.put(one, self._scores.of(one) if isinstance(one, ContentDelta) else ())
            for one in self._reader.read(delta)
        )

    def closing(self, outputs: Sequence[RequestOutput]) -> bytes:
        (answer,) = outputs[0].outputs
        events = self._items.finish(item_status(answer))
        return events + self._last(self._response(outputs, self._items.done))

    def whole(self, outputs: Sequence[RequestOutput]) -> bytes:
        (output,) = outputs
        (answer,) = output.outputs
        self._begin(output.prompt_token_ids)
        self.delta(0, answer)
        self._items.finish(item_status(answer))
        return encode(self._response(outputs, self._items.done))

    def _reasoning_tokens(self, outputs: Sequence[RequestOutput]) -> int:
        return self._reply.reasoning_tokens(outputs)
