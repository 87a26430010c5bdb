"""Which chunks of a stream have the usage."""

import json
from typing import Any

import pytest

from paceline.core.plan import NO_TIMINGS
from paceline.engine.api import RequestOutput, Usage
from paceline.server.schemas.completions import ChatChunk, Completion
from paceline.server.schemas.envelope import NO_OPTIONS, Envelope
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
