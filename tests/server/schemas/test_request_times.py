"""The field `metrics` of responses."""

from typing import Any

import pytest

from paceline.core.plan import NO_TIMINGS, Timings
from paceline.engine.api import ChoiceOutput, RequestOutput, Usage
from paceline.server.schemas.completions import RequestTimes, encode, times_of
from paceline.server.settings import ServerSettings
from tests.server.support import MODEL, Site, on_its_own_server

CHOICE = ChoiceOutput(0, "", (), None, "length", None)
SPENT = Timings(queue_s=0.5, prefill_s=0.25, decode_s=0.75, total_s=1.5)
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TALK = [{"role": "user", "content": "hello"}]
SHORT = {"max_tokens": 4, "ignore_eos": True}


def output(tokens: int, choices: int = 1, spent: Timings = SPENT) -> RequestOutput:
    return RequestOutput("a", None, (), (CHOICE,) * choices, Usage(4, tokens, 0), spent)


def test_times_are_those_of_one_sequence() -> None:
    assert times_of([output(4)]) == RequestTimes(250.0, 750.0, 500.0, 250.0, 4.0)
    assert times_of([output(4, choices=2)]) is None
    assert times_of([output(4), output(4)]) is None


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        (output(1), RequestTimes(250.0, 750.0, 500.0, tokens_per_second=1.0)),
        (output(0), RequestTimes()),
        (output(1, spent=NO_TIMINGS), RequestTimes(0.0, 0.0, 0.0)),
        (output(3, spent=Timings(total_s=1.5)), RequestTimes()),  # cut by the front end
    ],
)
def test_what_is_not_known_is_absent(known: RequestOutput, expected: RequestTimes) -> None:
    assert times_of([known]) == expected
    assert b"null" not in encode(expected)


def test_a_server_returns_the_times_of_its_requests() -> None:
    async def scenario(site: Site) -> None:
        whole = (await site.post(CHAT, messages=TALK, **SHORT)).json()
        assert whole["metrics"].keys() == {*RequestTimes.__struct_fields__}
        assert whole["metrics"]["tokens_per_second"] > 0
        assert (await site.post(COMPLETIONS, prompt="a", n=2, **SHORT)).json()["metrics"] is None
        text = (await site.post(COMPLETIONS, prompt="a", **SHORT)).json()
        assert text["metrics"]["mean_itl_ms"] > 0
        response = await site.openai.responses.create(model=MODEL, input="a", max_output_tokens=4)
        extra: Any = response.model_extra
        assert extra["metrics"]["queue_time_ms"] >= 0
        usage = {"stream_options": {"include_usage": True}}
        *others, last = await site.events(CHAT, messages=TALK, **SHORT, **usage)
        assert last["metrics"]["generation_time_ms"] > 0
        assert not any("metrics" in event for event in others)
        events = await site.events(CHAT, messages=TALK, **SHORT)
        assert not any("metrics" in event for event in events)

    on_its_own_server(scenario, ServerSettings(enable_per_request_metrics=True))
