"""An Ask is complete and consistent when it is built."""

from typing import Any

import pytest

from paceline.core.errors import RequestError
from paceline.engine.api import (
    Alternative,
    GenerationRequest,
    SamplingParams,
    TextDelta,
    TokenizedPrompt,
    TokenLogprob,
)

MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize(
    "given",
    [{}, {"prompt": "a", "prompt_token_ids": [1]}, {"prompt": "a", "messages": MESSAGES}],
)
def test_exactly_one_form_of_the_prompt_is_given(given: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="give one of"):
        GenerationRequest(**given)


@pytest.mark.parametrize(
    "given",
    [
        {"tools": [{"type": "function"}]},
        {"variables": {"a": 1}},
        {"add_generation_prompt": False},
        {"continue_final_message": True},
    ],
)
def test_what_only_a_chat_template_reads_needs_messages(given: dict[str, Any]) -> None:
    (name,) = given
    GenerationRequest(messages=MESSAGES, **given)
    with pytest.raises(RequestError, match=f"{name} is for the chat template"):
        GenerationRequest(prompt="hello", **given)


def test_no_tools_and_no_variables_are_nothing() -> None:
    GenerationRequest(prompt="hello", tools=[], variables={})


@pytest.mark.parametrize("timeout", [0.0, -1.0, float("nan")])
def test_a_timeout_is_positive(timeout: float) -> None:
    with pytest.raises(RequestError, match="timeout"):
        GenerationRequest(prompt="hello", timeout=timeout)


def test_a_request_that_is_ready_has_token_ids_and_nothing_for_a_template() -> None:
    given = GenerationRequest(
        messages=MESSAGES,
        tools=[{}],
        variables={"a": 1},
        add_generation_prompt=False,
        continue_final_message=True,
    )
    ready = given.ready(TokenizedPrompt([5, 6], "hello"), request_id="mine", timeout=3.0)
    assert ready == GenerationRequest(
        prompt_token_ids=[5, 6], text="hello", request_id="mine", timeout=3.0
    )


def test_a_request_that_is_ready_has_the_rest_of_its_settings() -> None:
    given = GenerationRequest(
        prompt="hello",
        params=SamplingParams(max_tokens=3, truncate_prompt_tokens=2),
        request_id="mine",
        timeout=2.0,
    )
    ready = given.ready(TokenizedPrompt([5, 6]))
    assert (ready.request_id, ready.timeout) == ("mine", 2.0)
    assert ready.params == SamplingParams(max_tokens=3)
    params = SamplingParams(seed=1, truncate_prompt_tokens=2)
    assert given.ready(TokenizedPrompt([5]), params=params).params == SamplingParams(seed=1)


def test_log_probabilities_add_up() -> None:
    tokens = [TokenLogprob(Alternative(5, logprob, "a", b"a"), ()) for logprob in (-0.5, -0.25)]
    first, second = (TextDelta(0, "a", (5,), (token,)) for token in tokens)
    assert first.followed_by(second).cumulative_logprob == -0.75
    assert TextDelta(0, "a", (5,), ()).cumulative_logprob == 0
    assert TextDelta(0, "a", (5,)).cumulative_logprob is None
