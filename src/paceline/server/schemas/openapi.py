"""Responses in the OpenAPI document."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "string"},
            },
        }
    },
}
FAULT = {"description": "The error", "content": {"application/json": {"schema": ERROR}}}

MESSAGE_ERROR = {
    "type": "object",
    "required": ["type", "error", "request_id"],
    "properties": {
        "type": {"type": "string"},
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
        },
        "request_id": {"type": "string"},
    },
}
MESSAGE_FAULT = {
    "description": "The error",
    "content": {"application/json": {"schema": MESSAGE_ERROR}},
}

Documented = dict[int | str, dict[str, Any]]

ERRORS: Documented = {"4XX": FAULT, "5XX": FAULT}
GENERATED: Documented = {
    200: {
        "description": "The answer, or a stream of it",
        "content": {"application/json": {}, "text/event-stream": {}},
    },
    **ERRORS,
}
MESSAGE_ERRORS: Documented = {"4XX": MESSAGE_FAULT, "5XX": MESSAGE_FAULT}
MESSAGE_GENERATED: Documented = {200: GENERATED[200], **MESSAGE_ERRORS}
INVOKED: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"type": "object"}}},
    }
}
PROBED: Documented = {503: {"description": "Not ready, and why"}}


quoted = msgspec.json.Encoder().encode  # a text as JSON


@dataclass(frozen=True, slots=True)
class TextFrame:
    """The bytes of an event before and after its text; the quotes belong to the text."""

    before: bytes
    after: bytes

    @classmethod
    def of(cls, write: Callable[[str], bytes]) -> "TextFrame":
        """Of the events that `write` makes of texts."""
        before, after = cut(write("0"), write("1"))
        return cls(before[:-1], after[1:])


@dataclass(frozen=True, slots=True)
class NumberedFrame:
    """The same for events with a number before their text."""

    before: bytes
    between: bytes
    after: bytes

    @classmethod
    def of(cls, write: Callable[[int, str], bytes]) -> "NumberedFrame":
        before, _ = cut(write(0, "0"), write(1, "0"))
        frame = TextFrame.of(lambda text: write(0, text))
        return cls(before, frame.before[len(before) + 1 :], frame.after)

    def event(self, number: int, text: str) -> bytes:
        return b"%b%d%b%b%b" % (self.before, number, self.between, quoted(text), self.after)


def cut(one: bytes, other: bytes) -> tuple[bytes, bytes]:
    """What precedes and what follows the only byte in which two events differ."""
    at = bisect_left(range(len(one)), True, key=lambda at: one[: at + 1] != other[: at + 1])
    assert one[at + 1 :] == other[at + 1 :], "the events differ in more than one byte"
    return one[:at], one[at + 1 :]
