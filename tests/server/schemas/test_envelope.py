"""Chunks with the usage, and frames that are cut out of whole events."""

import json
from typing import Any

import pytest

from paceline.core.events import NO_TIMINGS
from paceline.engine.api import RequestOutput, Usage
from paceline.server.schemas.completions import ChatChunk, Completion
from paceline.server.schemas.envelope import (
    NO_OPTIONS,
    Envelope,
    NumberedFrame,
    TextFrame,
    cut,
    quoted,
)
from paceline.server.schemas.requests import ChatRequest
from paceline.server.settings import ServerSettings


@pytest.mark.parametrize(
    ("options", "forced", "counts", "at_the_end"),
    [
        (None, False, False, False),
        ({}, False, False, False),
        ({"include_usage": True}, False, False, True),
        ({"continuous_usage_stats": True}, False, False, False),
        ({"include_usage": True, "continuous_usage_stats": True}, False, True, True),
        (None, True, True, True),
        ({"include_usage": False}, True, True, True),
    ],
)
def test_usage_is_where_the_request_or_the_server_wants_it(
    options: Any, forced: bool, counts: bool, at_the_end: bool
) -> None:
    body = ChatRequest.model_validate({"messages": [], "stream_options": options})
    settings = ServerSettings(enable_force_include_usage=forced)
    envelope = Envelope.of(body, "a", "model", settings)
    assert (envelope.counts, envelope._include) == (counts, at_the_end)


@pytest.mark.parametrize("kind", [ChatChunk, Completion])
def test_a_stream_ends_with_the_place_of_its_kv(kind: Any) -> None:
    envelope, params = Envelope("a", "model", NO_OPTIONS), {"remote_port": 5600}
    outputs = [
        RequestOutput("a", None, (), (), Usage(4, 1, 0), NO_TIMINGS, kv_transfer_params=given)
        for given in (params, None)
    ]
    last, done = envelope.closing(kind, outputs[:1]).split(b"\n\n")[:2]
    assert json.loads(last.removeprefix(b"data: "))["kv_transfer_params"] == params
    assert done == b"data: [DONE]"
    assert envelope.closing(kind, outputs[1:]) == b"data: [DONE]\n\n"


@pytest.mark.parametrize("fields", [{}, {"a": "0"}, {"a": '"0"1', "z": ["1", 0]}])
def test_a_frame_is_what_stands_around_a_text(fields: dict[str, object]) -> None:
    def write(text: str) -> bytes:
        return quoted({**fields, "text": text, "é": 1, **fields})

    frame = TextFrame.of(write)
    for text in ("", "a", "01", '"', "\x00\u2028é😀"):
        event = frame.before + quoted(text) + frame.after
        assert event == write(text)
        assert json.loads(event)["text"] == text


def test_a_number_may_grow_before_the_text() -> None:
    def write(number: int, text: str) -> bytes:
        return quoted({"item": "01", "number": number, "at": 0, "text": text, "end": [1]})

    frame = NumberedFrame.of(write)
    for number in (0, 9, 10, 123_456):
        assert frame.event(number, "a\n") == write(number, "a\n")


def test_events_that_differ_elsewhere_too_have_no_frame() -> None:
    with pytest.raises(AssertionError, match="more than one byte"):
        cut(b"a0b0", b"a1b1")
