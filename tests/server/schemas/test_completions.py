"""Fields of completions: names of tokens in `logprobs`, and `metrics`."""

from typing import Any

import pytest

from paceline.core.events import NO_TIMINGS, Timings
from paceline.engine.api import Alternative, ChoiceOutput, RequestOutput, TokenLogprob, Usage
from paceline.server.schemas.completions import (
    IMPOSSIBLE,
    RequestTimes,
    TokenSpeller,
    encode,
    times_of,
)
from paceline.server.settings import ServerSettings
from tests.server.support import MODEL, Site, on_its_own_server


def alternative(token_id: int, logprob: float, spelled: bytes) -> Alternative:
    return Alternative(token_id, logprob, spelled.decode(errors="replace"), spelled)


def test_parts_of_characters_are_told_apart() -> None:
    halves = alternative(1, -1.0, b"\xe2\x82"), alternative(2, -2.0, b"\xf0\x9f")
    tops = TokenSpeller().tops(TokenLogprob(halves[0], halves), 2)
    assert tops == {"bytes:\\xe2\\x82": -1.0, "bytes:\\xf0\\x9f": -2.0}


def test_the_token_itself_stands_beside_the_likeliest() -> None:
    top = tuple(alternative(id, -id, b"%d" % id) for id in (1, 2))
    chosen = alternative(9, float("-inf"), b"9")
    tops = TokenSpeller().tops(TokenLogprob(chosen, top), 2)
    assert list(tops.items()) == [("9", IMPOSSIBLE), ("1", -1), ("2", -2)]
    assert TokenSpeller().tops(TokenLogprob(chosen, top), 0) == {"9": IMPOSSIBLE}
    assert "token_id:9" in TokenSpeller(as_ids=True).tops(TokenLogprob(chosen, top), 1)


def test_of_tokens_with_the_same_text_the_likeliest_counts_but_never_against_the_token() -> None:
    top = (alternative(1, -1.0, b"a"), alternative(2, -2.0, b"b"), alternative(3, -3.0, b"b"))
    chosen = alternative(4, -5.0, b"a")
    assert TokenSpeller().tops(TokenLogprob(chosen, top), 3) == {"b": -2.0, "a": -5.0}


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
