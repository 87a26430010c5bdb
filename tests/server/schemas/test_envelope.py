"""Which chunks of a stream have the usage."""

from typing import Any

import pytest

from paceline.server.schemas.envelope import Envelope
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
