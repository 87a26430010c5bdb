"""The items of a response: messages, reasoning and function calls, whole and as events."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from msgspec import Struct

from paceline.server.schemas.completions import ChatLogprob
from paceline.server.schemas.envelope import NumberedFrame
from paceline.server.schemas.responses import (
    FunctionCallItem,
    OutputMessage,
    OutputText,
    Status,
    response_event,
)
from paceline.tools.calls import CallDelta, ContentDelta, ReasoningDelta, ReplyDelta, kind_of

Scores = Sequence[ChatLogprob]
NO_FIELDS: Mapping[str, Any] = MappingProxyType({})


class ReasoningText(Struct, frozen=True):
    """A part of reasoning."""

    text: str
    type: str = "reasoning_text"


class ReasoningItem(Struct, frozen=True):
    """What the model thought before its answer. There is no summary of it."""

    id: str
    status: Status
    content: Sequence[ReasoningText]
    summary: Sequence[Any] = ()
    type: str = "reasoning"


class OpenItem(ABC):
    """An item of one kind, whose text grows."""

    events: str  # the events of its text begin with this

    def __init__(self, id: str) -> None:
        self.id = id

    @abstractmethod
    def item(self, status: Status, text: str | None) -> Struct:
        """The item with its text; None: it has not begun."""

    def part(self, text: str) -> Struct | None:
        """The part that has the text; None: the item itself has it."""
        return None

    def added(self, scores: Scores) -> Mapping[str, Any]:
        """Further fields of the event of a text, whose tokens have these log-probabilities."""
        return NO_FIELDS

    def done(self, text: str) -> dict[str, Any]:
        """The fields of the event that ends the text."""
        return {"text": text}


class OpenMessage(OpenItem):
    """The answer, with the log-probabilities of its tokens, if there are any."""

    events = "response.output_text"

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self._scores: list[ChatLogprob] = []

    def item(self, status: Status, text: str | None) -> OutputMessage:
        return OutputMessage(self.id, status, () if text is None else (self.part(text),))

    def part(self, text: str) -> OutputText:
        return OutputText(text, logprobs=tuple(self._scores))

    def added(self, scores: Scores) -> Mapping[str, Any]:
        self._scores += scores
        return {"logprobs": scores}

    def done(self, text: str) -> dict[str, Any]:
        return {"text": text, "logprobs": self._scores}


class OpenReasoning(OpenItem):
    """Reasoning."""

    events = "response.reasoning_text"

    def item(self, status: Status, text: str | None) -> ReasoningItem:
        return ReasoningItem(self.id, status, () if text is None else (self.part(text),))

    def part(self, text: str) -> ReasoningText:
        return ReasoningText(text)


class OpenCall(OpenItem):
    """A function call; its arguments are a field of the item."""

    events = "response.function_call_arguments"

    def __init__(self, id: str, begun: CallDelta) -> None:
        super().__init__(id)
        self._call_id, self._name = begun.id or "", begun.name or ""

    def item(self, status: Status, text: str | None) -> FunctionCallItem:
        return FunctionCallItem(self.id, status, self._call_id, self._name, text or "")

    def done(self, text: str) -> dict[str, Any]:
        return {"arguments": text, "name": self._name}


class ResponseItems:
    """Turns the deltas of a reply into items, one after another, and numbers all events.

    `done` has the items that are complete.
    """

    def __init__(self, response: str) -> None:
        self.done: list[Struct] = []
        self.number = 0  # of the next event
        self._response = response
        self._open: OpenItem | None = None
        self._kind: object = None
        self._texts: list[str] = []
        self._place: dict[str, Any] = {}  # the open item, in its events
        self._frame: NumberedFrame | None = None  # of its texts without log-probabilities

    def event(self, kind: str, **fields: Any) -> bytes:
        number, self.number = self.number, self.number + 1
        return response_event(kind, number, **fields)

    def put(self, delta: ReplyDelta, scores: Scores = ()) -> bytes:
        """`scores` has the log-probabilities of the tokens of a message."""
        events = b""
        if self._open is None or kind_of(delta) != self._kind:
            events = self.close("completed") + self._begin(delta)
        text = delta.arguments if isinstance(delta, CallDelta) else delta.text
        return events + self._add(text, scores) if text or scores else events

    def finish(self, status: Status) -> bytes:
        """End the last item; a reply without any is an empty message."""
        events = b"" if self.done or self._open else self.put(ContentDelta(""))
        return events + self.close(status)

    def close(self, status: Status) -> bytes:
        if (kind := self._open) is None:
            return b""
        self._open = self._frame = None
        text = "".join(self._texts)
        events = self.event(f"{kind.events}.done", **self._place, **kind.done(text))
        if part := kind.part(text):
            events += self.event("response.content_part.done", **self._place, part=part)
        item, at = kind.item(status, text), len(self.done)
        self.done.append(item)
        return events + self.event("response.output_item.done", output_index=at, item=item)

    def _begin(self, delta: ReplyDelta) -> bytes:
        self._kind, self._texts = kind_of(delta), []
        kind = self._open = self._kind_for(delta)
        empty, at, part = kind.item("in_progress", None), len(self.done), kind.part("")
        self._place = {"item_id": kind.id, "output_index": at}
        events = self.event("response.output_item.added", output_index=at, item=empty)
        if part:
            self._place["content_index"] = 0
            events += self.event("response.content_part.added", **self._place, part=part)
        return events

    def _kind_for(self, delta: ReplyDelta) -> OpenItem:
        # The first message keeps the plain id.
        name = f"{self._response}-{len(self.done)}" if self.done else self._response
        match delta:
            case ContentDelta():
                return OpenMessage(f"msg-{name}")
            case ReasoningDelta():
                return OpenReasoning(f"rs-{name}")
            case CallDelta():
                return OpenCall(f"fc-{name}", delta)

    def _add(self, text: str, scores: Scores) -> bytes:
        kind = self._open
        assert kind is not None, "no item has begun"
        self._texts.append(text)
        fields, number = kind.added(scores), self.number
        self.number += 1

        def write(number: int, text: str) -> bytes:
            return response_event(
                f"{kind.events}.delta", number, **self._place, delta=text, **fields
            )

        if scores:
            return write(number, text)
        if self._frame is None:
            self._frame = NumberedFrame.of(write)
        return self._frame.event(number, text)
