"""Clients get documents and calls that are valid, unchanged and from a real model."""

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import anthropic
import httpx
import openai
import pytest
from jsonschema import Draft202012Validator
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field

from tests.server.real import running
from tests.server.thinking_model import biases, thinking_model

TALK: Any = [{"role": "user", "content": "hi"}]
# Random weights write much whitespace between the tokens of JSON.
ONCE: dict[str, Any] = {"max_tokens": 600, "logit_bias": biases(" \t\r\n", -100.0)}


class Part(BaseModel):
    """A part of a report."""

    kind: Literal["rain", "sun"]
    share: int = Field(ge=0, le=100)


class Report(BaseModel):
    """The weather of a place."""

    place: Annotated[str, Field(max_length=3)]  # a keyword that xgrammar does not hold
    parts: list[Part] = Field(max_length=2)
    again: bool


class Look(BaseModel):
    """Look at the sky."""

    kind: Literal["rain", "sun"]
    days: int = Field(ge=1, le=7)


LOOK = Look.model_json_schema()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = thinking_model(tmp_path_factory.mktemp("thinking"))
    with running(folder, load_format="dummy", reasoning_parser="qwen3", core="thread") as found:
        yield found.http


@pytest.fixture(scope="module")
def model(server: httpx.Client) -> str:
    return str(server.get("/v1/models").json()["data"][0]["id"])


@pytest.fixture(scope="module")
def client(server: httpx.Client) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.base_url}/v1", api_key="none", max_retries=0)


def post(server: httpx.Client, path: str, **body: Any) -> dict[str, Any]:
    response = server.post(path, json=body)
    assert response.status_code == 200, response.text
    return dict(response.json())


# -- openai -------------------------------------------------------------------


def test_chat_completions_parse(client: openai.OpenAI, model: str) -> None:
    answer = client.chat.completions.parse(
        model=model, messages=TALK, response_format=Report, **ONCE
    )
    report = answer.choices[0].message.parsed
    assert report is not None
    assert len(report.parts) <= 2


def test_chat_completions_parse_calls(client: openai.OpenAI, model: str) -> None:
    answer = client.chat.completions.parse(
        model=model,
        messages=TALK,
        tools=[openai.pydantic_function_tool(Look)],
        tool_choice="required",
        parallel_tool_calls=False,
        **ONCE,
    )
    (call,) = answer.choices[0].message.tool_calls or [None]
    assert call is not None
    assert isinstance(call.function.parsed_arguments, Look)


def test_responses_parse(client: openai.OpenAI, model: str) -> None:
    body: dict[str, Any] = {"model": model, "input": "hi", "text_format": Report}
    answer = client.responses.parse(**body, extra_body=ONCE)
    assert answer.output_parsed is not None
    with client.responses.stream(**body, extra_body=ONCE) as stream:
        assert stream.get_final_response().output_parsed is not None


def test_responses_have_log_probabilities_beside_reasoning_and_tools(
    client: openai.OpenAI, model: str
) -> None:
    body: dict[str, Any] = {
        "model": model,
        "input": "hi",
        "tools": [{"type": "function", "name": "look", "parameters": LOOK}],
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 2,
        "max_output_tokens": 30,
        "extra_body": {"temperature": 0, "ignore_eos": True},
    }

    def spelled(scores: Any) -> str:
        return b"".join(bytes(one.bytes) for one in scores).decode(errors="replace")

    whole = client.responses.create(**body)
    (message,) = (one for one in whole.output if one.type == "message")
    (part,) = message.content
    assert part.type == "output_text"
    assert spelled(part.logprobs).strip() == part.text.strip() != ""
    assert {len(one.top_logprobs) for one in part.logprobs or ()} == {2}
    events = list(client.responses.create(**body, stream=True))
    (done,) = (one for one in events if one.type == "response.output_text.done")
    deltas = [one for one in events if one.type == "response.output_text.delta"]
    streamed = [score.token for one in deltas for score in one.logprobs]
    assert streamed == [one.token for one in done.logprobs]
    assert streamed == [one.token for one in part.logprobs or ()]


@pytest.mark.parametrize("budget", [0, 5])
def test_reasoning_ends_after_its_budget(server: httpx.Client, budget: int) -> None:
    """Random weights would reason on: of all tokens, the marker is the least likely."""
    thinks = {"chat_template_kwargs": {"enable_thinking": True}, "ignore_eos": True}
    plain = {"max_tokens": 20, "seed": 1, "logit_bias": biases("</think>", -100.0), **thinks}
    free = post(server, "/v1/chat/completions", messages=TALK, **plain)
    assert free["usage"]["completion_tokens_details"]["reasoning_tokens"] == 20
    limited = {**plain, "thinking_token_budget": budget}
    chat = post(server, "/v1/chat/completions", messages=TALK, **limited)
    assert chat["usage"]["completion_tokens_details"]["reasoning_tokens"] == budget + 1
    assert chat["choices"][0]["message"]["content"]
    response = post(server, "/v1/responses", input="hi", **limited)
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] == budget + 1
    schema = {"response_format": {"type": "json_schema", "json_schema": {"schema": LOOK}}}
    held = post(server, "/v1/chat/completions", messages=TALK, **limited | ONCE | schema)
    Look.model_validate_json(held["choices"][0]["message"]["content"])


def test_thinking_of_a_message_ends_after_its_budget(server: httpx.Client) -> None:
    thinking = {"type": "enabled", "budget_tokens": 4}
    message = post(server, "/v1/messages", messages=TALK, max_tokens=300, thinking=thinking)
    kinds = [block["type"] for block in message["content"]]
    assert kinds == ["thinking", "text"]
    # Each of its tokens is a character here, but for the one that begins thinking.
    assert len(message["content"][0]["thinking"].replace("<think>", "?")) <= 4


# -- others -------------------------------------------------------------------


def test_anthropic_formats(server: httpx.Client, model: str) -> None:
    client = anthropic.Anthropic(base_url=str(server.base_url), api_key="none", max_retries=0)
    form = {"format": {"type": "json_schema", "schema": LOOK}}
    answer = client.messages.create(
        model=model, messages=TALK, max_tokens=600, extra_body={"output_config": form}
    )
    text = answer.content[-1]
    assert text.type == "text"
    Look.model_validate_json(text.text)


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_langchain_structured_output(server: httpx.Client, model: str, method: Any) -> None:
    how: dict[str, Any] = {
        "base_url": f"{server.base_url}/v1",
        "api_key": "none",
        "max_tokens": 600,
    }
    chat = ChatOpenAI(model=model, **how)
    found = chat.with_structured_output(Look, method=method).invoke("hi")
    assert isinstance(found, Look)


@pytest.mark.parametrize("mode", ["TOOLS", "JSON_SCHEMA"])
def test_instructor(client: openai.OpenAI, model: str, mode: str) -> None:
    """Its bound on another package holds the openai client back, so it is not installed for all."""
    instructor = pytest.importorskip("instructor")
    patched = instructor.from_openai(client, mode=getattr(instructor.Mode, mode))
    found = patched.chat.completions.create(
        model=model, messages=TALK, response_model=Look, max_retries=0, **ONCE
    )
    assert isinstance(found, Look)


# -- the server alone -----------------------------------------------------------


CLOSE = biases("</think>", 3.0)  # behind the reasoning it is not allowed


# A chat with some tokens of reasoning and an answer that follows a schema.
THINKING: dict[str, Any] = {
    "messages": TALK,
    "response_format": {"type": "json_schema", "json_schema": {"name": "look", "schema": LOOK}},
    "chat_template_kwargs": {"enable_thinking": True},
    "max_tokens": 600,
    "logit_bias": ONCE["logit_bias"] | CLOSE,
}


def test_an_answer_is_held_behind_the_reasoning(server: httpx.Client) -> None:
    """The reasoning is free text, and its tokens are counted."""
    path, (close,) = "/v1/chat/completions", map(int, CLOSE)
    answer = post(server, path, **THINKING, return_token_ids=True, n=3)
    reasoning = 0
    for choice in answer["choices"]:
        Look.model_validate_json(choice["message"]["content"])
        reasoning += choice["token_ids"].index(close) + 1
        assert choice["token_ids"].count(close) == 1
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": reasoning}
    options = {"stream": True, "stream_options": {"include_usage": True}}
    streamed = server.post(path, json={**THINKING, **options}).text
    last = json.loads(streamed.strip().split("\n\n")[-2].removeprefix("data: "))
    used = last["usage"]
    assert 0 < used["completion_tokens_details"]["reasoning_tokens"] < used["completion_tokens"]


def test_every_chat_of_a_batch_is_held(server: httpx.Client) -> None:
    body = {**THINKING, "messages": [TALK, TALK]}
    choices = post(server, "/v1/chat/completions/batch", **body)["choices"]
    assert len(choices) == 2
    for choice in choices:
        Look.model_validate_json(choice["message"]["content"])


def test_grammars_are_counted(server: httpx.Client) -> None:
    def counted() -> dict[str, float]:
        lines = server.get("/metrics").text.splitlines()
        own = [line for line in lines if line.startswith("paceline:") and "grammar" in line]
        pairs = [line.removeprefix("paceline:").partition("{") for line in own]
        return {name: float(rest.rpartition(" ")[2]) for name, _, rest in pairs}

    body = {"prompt": "hi", "guided_choice": ["yes", "no"]}
    post(server, "/v1/completions", **body)
    before = counted()
    post(server, "/v1/completions", **body)
    after = counted()
    assert before["grammars_compiled_total"] == after["grammars_compiled_total"] > 0
    assert before["grammar_compile_seconds_total"] > 0
    assert after["grammar_cache_hits_total"] == before["grammar_cache_hits_total"] + 1
    assert after["num_requests_waiting_for_grammar"] == after["grammars_refused_total"] == 0


CHOICES = pytest.mark.parametrize("named", [False, True])


def check_calls(calls: list[Any]) -> None:
    assert len(calls) == 1
    Draft202012Validator(LOOK).validate(calls[0])


@CHOICES
def test_calls_are_held_in_chats(server: httpx.Client, named: bool) -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": LOOK}}]
    choice = {"type": "function", "function": {"name": "look"}} if named else "required"
    body = {"tools": tools, "tool_choice": choice, "parallel_tool_calls": named, **ONCE}
    answer = post(server, "/v1/chat/completions", messages=TALK, **body)
    calls = answer["choices"][0]["message"]["tool_calls"]
    check_calls([json.loads(each["function"]["arguments"]) for each in calls])


@CHOICES
def test_calls_are_held_in_responses(server: httpx.Client, named: bool) -> None:
    tools = [{"type": "function", "name": "look", "parameters": LOOK, "strict": True}]
    choice = {"type": "function", "name": "look"} if named else "required"
    body = {"tools": tools, "tool_choice": choice, "parallel_tool_calls": named, **ONCE}
    items = post(server, "/v1/responses", input="hi", **body)["output"]
    found = [each for each in items if each["type"] == "function_call"]
    check_calls([json.loads(each["arguments"]) for each in found])


@CHOICES
def test_calls_are_held_in_messages(server: httpx.Client, named: bool) -> None:
    choice: dict[str, Any] = {"type": "tool", "name": "look"} if named else {"type": "any"}
    choice["disable_parallel_tool_use"] = not named
    tools = [{"name": "look", "input_schema": LOOK}]
    body = {"tools": tools, "tool_choice": choice, "max_tokens": 600}
    blocks = post(server, "/v1/messages", messages=TALK, **body)["content"]
    check_calls([each["input"] for each in blocks if each["type"] == "tool_use"])
