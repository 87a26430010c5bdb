"""What a body says is what the engine is asked."""

from dataclasses import fields
from typing import Any

import pytest

from paceline.core.errors import RequestError
from paceline.core.sampling import Sampling
from paceline.engine.api import GenerationRequest, SamplingParams
from paceline.engine.sampling_rules import NO_RULES, SamplingRules
from paceline.server.errors import ApiError
from paceline.server.parse import chat_ask, completion_asks
from paceline.server.routes.responses import response_ask
from paceline.server.schemas.requests import ChatRequest, CompletionRequest, ResponseRequest
from paceline.text.tokenizer import InfillMarkers

MESSAGES = [{"role": "user", "content": "the"}]
BEAMS = {"use_beam_search": True, "beam_width": 2, "temperature": 0.0}
# Each with a value that is not the default, and with what it cannot do without.
SAMPLING: list[dict[str, Any]] = [
    {"n": 3},
    {"best_of": 4},
    BEAMS,
    {"length_penalty": 0.5, **BEAMS},
    {"early_stopping": "never", **BEAMS},
    {"temperature": 0.3},
    {"top_p": 0.4},
    {"top_k": 5},
    {"min_p": 0.6},
    {"presence_penalty": 0.7},
    {"frequency_penalty": 0.8},
    {"repetition_penalty": 1.5},
    {"seed": 9},
    {"min_tokens": 1},
    {"stop": ["end"]},
    {"stop_token_ids": [6]},
    {"ignore_eos": True},
    {"include_stop_str_in_output": True},
    {"skip_special_tokens": False},
    {"bad_words": ["no", "never"]},
    {"bad_token_ids": [8]},
    {"allowed_token_ids": [7]},
    {"slo": {"ttft_ms": 500.0, "itl_ms": 40.0}},
    {"structured_outputs": {"choice": ["a", "b"]}},
]
ELSEWHERE = {
    *("max_tokens", "logprobs", "prompt_logprobs", "logprob_token_ids"),
    *("logit_bias", "structured_outputs", "spaces_between_special_tokens"),
    # From Python alone; a body has the third one for all of its prompt.
    *("detokenize", "guided_decoding", "truncate_prompt_tokens", "logits_processors"),
}


def asked(**given: Any) -> list[GenerationRequest]:
    """The same at each of the routes; a response has one choice."""
    generations = [*completion_asks(CompletionRequest(prompt="the", **given), NO_RULES)]
    generations.append(chat_ask(ChatRequest(messages=MESSAGES, **given), NO_RULES))
    return (
        generations
        if "n" in given
        else [*generations, response_ask(ResponseRequest(input="the", **given), NO_RULES)]
    )


def test_all_of_sampling_is_tried() -> None:
    tried = {name for given in SAMPLING for name in given}
    assert tried | ELSEWHERE == {one.name for one in fields(SamplingParams)}


@pytest.mark.parametrize("given", SAMPLING, ids=lambda given: next(iter(given)))
def test_sampling_is_what_the_body_says(given: dict[str, Any]) -> None:
    for generation in asked(**given, max_tokens=5):
        assert generation.params == SamplingParams(**given, max_tokens=5)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, {"priority": 0, "tenant": "", "cache_salt": "", "deadline": None, "timeout": None}),
        ({"priority": -2}, {"priority": -2}),
        ({"user": "ann"}, {"tenant": "ann"}),
        ({"cache_salt": "own"}, {"cache_salt": "own"}),
        ({"deadline": 0.5}, {"deadline": 0.5}),
        ({"timeout": 3.0}, {"timeout": 3.0}),
    ],
)
def test_who_asks_and_how_urgently_is_what_the_body_says(
    given: dict[str, Any], wanted: dict[str, Any]
) -> None:
    for generation in asked(**given):
        assert {name: getattr(generation, name) for name in wanted} == wanted


def test_the_newer_name_of_a_limit_counts_first() -> None:
    body = ChatRequest(messages=MESSAGES, max_tokens=3, max_completion_tokens=5)
    newer = ResponseRequest(input="the", max_tokens=3, max_output_tokens=5)
    chat, response = chat_ask(body, NO_RULES), response_ask(newer, NO_RULES)
    assert chat.params.max_tokens == response.params.max_tokens == 5
    assert [generation.params.max_tokens for generation in asked(max_tokens=3)] == [3, 3, 3]


def test_tools_that_may_not_be_called_are_not_shown() -> None:
    tools = [{"type": "function", "function": {"name": "look"}}]
    shown = ChatRequest(messages=MESSAGES, tools=tools, tool_choice="none")
    assert chat_ask(shown, NO_RULES).tools is None
    assert response_ask(ResponseRequest(input="the", tools=tools, tool_choice="none"), NO_RULES)


def test_the_effort_is_shown_to_the_template() -> None:
    kept = {"enable_thinking": False}
    chat = ChatRequest(messages=MESSAGES, reasoning_effort="low", chat_template_kwargs=kept)
    assert chat_ask(chat, NO_RULES).variables == {**kept, "reasoning_effort": "low"}
    response = ResponseRequest(input="the", reasoning={"effort": "high", "summary": "auto"})
    found = response_ask(response, NO_RULES).variables
    assert found == {"reasoning_effort": "high", "enable_thinking": True}
    quick = ChatRequest(messages=MESSAGES, reasoning_effort="none")
    found = chat_ask(quick, NO_RULES).variables
    assert found == {"reasoning_effort": "none", "enable_thinking": False}


def test_fields_that_a_body_leaves_out_are_those_that_the_model_recommends() -> None:
    rules = SamplingRules({"temperature": 0.6, "top_k": 20}, max_tokens=40)
    bodies = ChatRequest(messages=MESSAGES, top_k=5), ChatRequest(messages=MESSAGES, temperature=0)
    chosen = [chat_ask(body, rules).params for body in bodies]
    assert [(one.temperature, one.top_k, one.max_tokens) for one in chosen] == [
        (0.6, 5, 40),
        (0.0, 20, 40),
    ]
    (text,) = completion_asks(CompletionRequest(prompt="the"), rules)
    response = response_ask(ResponseRequest(input="the", max_output_tokens=50), rules)
    assert (text.params.temperature, text.params.max_tokens) == (0.6, 16)
    assert (response.params.temperature, response.params.max_tokens) == (0.6, 40)


@pytest.mark.parametrize(
    ("given", "begins", "continues"),
    [
        ({}, True, False),
        ({"add_generation_prompt": False}, False, False),
        ({"continue_final_message": True}, False, True),
        ({"continue_final_message": True, "add_generation_prompt": True}, True, True),
    ],
)
def test_a_chat_begins_a_message_or_continues_the_last(
    given: dict[str, bool], begins: bool, continues: bool
) -> None:
    one = chat_ask(ChatRequest.model_validate({"messages": MESSAGES, **given}), NO_RULES)
    assert (one.add_generation_prompt, one.continue_final_message) == (begins, continues)


def test_a_suffix_follows_the_answer_of_a_model_that_inserts() -> None:
    markers = InfillMarkers("<p>", "<s>", "<m>")
    body = CompletionRequest(prompt=["def f(", "class "], suffix="): ...")
    found = completion_asks(body, NO_RULES, markers)
    assert [one.prompt for one in found] == ["<p>def f(<s>): ...<m>", "<p>class <s>): ...<m>"]
    for wrong in ({"prompt": [5, 6]}, {"prompt": "a", "echo": True}):
        with pytest.raises(ApiError, match="suffix: it needs prompts that are texts"):
            completion_asks(CompletionRequest(suffix="b", **wrong), NO_RULES, markers)


def test_all_wrong_keys_of_a_bias_are_named_up_to_a_number() -> None:
    few = ChatRequest(messages=MESSAGES, logit_bias={"one": 1.0, "5": 1.0, "-1": 2.0})
    with pytest.raises(ApiError, match="logit_bias: 'one' and '-1' are not token ids"):
        chat_ask(few, NO_RULES)
    many = ChatRequest(messages=MESSAGES, logit_bias={f"a{n}": 1.0 for n in range(30)})
    with pytest.raises(ApiError, match="'a6', 'a7' and 22 more are not token ids"):
        chat_ask(many, NO_RULES)
    beyond = Sampling(logit_bias={3: 1.0, 50: 1.0, 60: 1.0})
    with pytest.raises(RequestError, match="logit_bias has 50 and 60, which are out of vocabulary"):
        beyond.check_vocab(40)
