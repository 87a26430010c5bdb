"""The content blocks of a message: text, thinking and tool use, whole and as events."""

import json
from typing import Any, cast

from msgspec import Struct

from paceline.server.schemas.messages import TextBlock, message_event
from paceline.tools.calls import CallDelta, ContentDelta, ReasoningDelta, ReplyDelta, kind_of

NO_JSON = "INVALID_JSON"  # the key under which arguments are returned that are no JSON object


class ThinkingBlock(Struct, frozen=True):
    """What the model thought before its answer. It is not signed."""

    thinking: str
    signature: str = ""
    type: str = "thinking"


class DirectCaller(Struct, frozen=True):
    """Who makes a call: the model, and no program that it has written."""

    type: str = "direct"


class ToolUseBlock(Struct, frozen=True):
    """A call that the model asks for."""

    id: str
    name: str
    input: dict[str, Any]
    type: str = "tool_use"
    caller: DirectCaller = DirectCaller()


def block_of(first: ReplyDelta, text: str) -> Struct:
    """The block that begins with a delta, with its text so far."""
    match first:
        case ContentDelta():
            return TextBlock(text)
        case ReasoningDelta():
            return ThinkingBlock(text)
        case CallDelta():
            return ToolUseBlock(first.id or "", first.name or "", input_of(text))


def delta_of(delta: ReplyDelta) -> dict[str, str]:
    match delta:
        case ContentDelta(text):
            return {"type": "text_delta", "text": text}
        case ReasoningDelta(text):
            return {"type": "thinking_delta", "thinking": text}
        case CallDelta(arguments=text):
            return {"type": "input_json_delta", "partial_json": text}


def text_in(delta: ReplyDelta) -> str:
    return delta.arguments if isinstance(delta, CallDelta) else delta.text


def input_of(arguments: str) -> dict[str, Any]:
    """Arguments as an object. A model may be cut off in them, or write malformed ones."""
    try:
        found = json.loads(arguments or "{}")
    except ValueError:
        found = None
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {NO_JSON: arguments}


class MessageBlocks:
    """Turns the deltas of a reply into blocks, one after another, and into their events.

    `done` has the blocks that are complete.
    """

    def __init__(self) -> None:
        self.done: list[Struct] = []
        self._first: ReplyDelta | None = None
        self._texts: list[str] = []

    def put(self, delta: ReplyDelta) -> bytes:
        events = b""
        if self._first is None or kind_of(delta) != kind_of(self._first):
            events = self.close()
            self._first, self._texts = delta, []
            empty = block_of(delta, "")
            events += message_event(
                "content_block_start", index=len(self.done), content_block=empty
            )
        if not (text := text_in(delta)):
            return events
        self._texts.append(text)
        return events + message_event(
            "content_block_delta", index=len(self.done), delta=delta_of(delta)
        )

    def finish(self) -> bytes:
        """End the last block; a reply without any is an empty text."""
        events = b"" if self.done or self._first else self.put(ContentDelta(""))
        return events + self.close()

    def close(self) -> bytes:
        if self._first is None:
            return b""
        self.done.append(block_of(self._first, "".join(self._texts)))
        self._first = None
        return message_event("content_block_stop", index=len(self.done) - 1)
