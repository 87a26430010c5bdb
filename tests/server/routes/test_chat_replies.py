"""Tool calls and reasoning of chats, whole and streamed."""

import asyncio
import json
from typing import Any

import pytest
from openai import AsyncOpenAI

from paceline.server.settings import ServerSettings
from tests.server.fed import FedSite, on_fed_server
from tests.server.sample_replies import (
    ARGUMENTS,
    CALLS,
    HERMES,
    TALK,
    TEXT,
    THOUGHT,
    TOOLS,
    answered,
    events,
    feed,
)

PATH = "/v1/chat/completions"
BODY: dict[str, Any] = {"messages": TALK, "tools": TOOLS}
NAMED = {"type": "function", "function": {"name": "look"}}


def message_of(chunks: list[dict[str, Any]], index: int = 0) -> dict[str, Any]:
    """The message that the chunks of a choice add up to, with its finish reason."""
    message: dict[str, Any] = {"content": None, "calls": []}
    for chunk in chunks:
        for choice in chunk["choices"]:
            if choice["index"] != index:
                continue
            delta = choice["delta"]
            for name in ("content", "reasoning_content", "reasoning"):
                if delta.get(name):
                    message[name] = (message.get(name) or "") + delta[name]
            for call in delta.get("tool_calls", ()):
                if "id" in call:
                    assert call["index"] == len(message["calls"])
                    assert call["type"] == "function"
                    message["calls"].append({"name": call["function"]["name"], "arguments": ""})
                message["calls"][call["index"]]["arguments"] += call["function"]["arguments"]
            message["finish"] = choice["finish_reason"]
    return message


def whole_of(choice: dict[str, Any]) -> dict[str, Any]:
    message = choice["message"]
    found: dict[str, Any] = {"content": message["content"], "calls": []}
    found |= {name: message[name] for name in ("reasoning_content", "reasoning") if name in message}
    for call in message.get("tool_calls", ()):
        assert call["id"].startswith("call_")
        assert call["type"] == "function"
        found["calls"].append(call["function"])
    return {**found, "finish": choice["finish_reason"]}


EXPECTED = {
    "content": "Let me look.",
    "reasoning_content": THOUGHT,
    "reasoning": THOUGHT,
    "calls": [
        {"name": "get_weather", "arguments": ARGUMENTS},
        {"name": "look", "arguments": "{}"},
    ],
    "finish": "tool_calls",
}


def test_calls_and_reasoning_have_fields_of_their_own() -> None:
    async def scenario(site: FedSite) -> None:
        whole = (await answered(site, PATH, BODY, TEXT)).json()
        (choice,) = whole["choices"]
        assert whole_of(choice) == EXPECTED
        assert whole["usage"]["completion_tokens"] > 0
        options = {"stream": True, "stream_options": {"include_usage": True}}
        for seed in range(6):
            chunks = events(await answered(site, PATH, {**BODY, **options}, TEXT, seed=seed))
            assert message_of(chunks) == EXPECTED
            assert chunks[-1]["usage"]["completion_tokens"] > 0

    on_fed_server(scenario, HERMES)


def test_the_choices_of_a_request_are_parsed_apart() -> None:
    async def scenario(site: FedSite) -> None:
        texts = {0: TEXT, 1: "No tool is needed.", 2: CALLS}
        whole = (await answered(site, PATH, {**BODY, "n": 3}, texts)).json()
        streamed = events(await answered(site, PATH, {**BODY, "n": 3, "stream": True}, texts))
        for at, choice in enumerate(whole["choices"]):
            assert message_of(streamed, at) == whole_of(choice)
        assert [one["finish_reason"] for one in whole["choices"]] == [
            "tool_calls",
            "stop",
            "tool_calls",
        ]
        assert [one["message"]["content"] for one in whole["choices"][1:]] == [
            "No tool is needed.",
            None,
        ]

    on_fed_server(scenario, HERMES)


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_is_cut_off_keeps_its_reason(stream: bool) -> None:
    async def scenario(site: FedSite) -> None:
        body = {**BODY, "stream": stream}
        response = await answered(site, PATH, body, CALLS[:60], reason="length")
        found = message_of(events(response)) if stream else whole_of(response.json()["choices"][0])
        assert found["finish"] == "length"
        assert ARGUMENTS.startswith(found["calls"][0]["arguments"])

    on_fed_server(scenario, HERMES)


@pytest.mark.parametrize("stream", [False, True])
def test_without_parallel_calls_the_first_one_counts(stream: bool) -> None:
    async def scenario(site: FedSite) -> None:
        body = {**BODY, "parallel_tool_calls": False, "stream": stream}
        response = await answered(site, PATH, body, TEXT)
        found = message_of(events(response)) if stream else whole_of(response.json()["choices"][0])
        assert found == {**EXPECTED, "calls": EXPECTED["calls"][:1]}

    on_fed_server(scenario, HERMES)


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_is_left_out_on_request(stream: bool) -> None:
    async def scenario(site: FedSite) -> None:
        body = {"messages": TALK, "include_reasoning": False, "stream": stream}
        response = await answered(site, PATH, body, f"<think>{THOUGHT}</think>Yes.")
        found = message_of(events(response)) if stream else whole_of(response.json()["choices"][0])
        assert found == {"content": "Yes.", "calls": [], "finish": "stop"}

    on_fed_server(scenario, HERMES)


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_a_required_call_is_held_by_a_grammar(choice: object) -> None:
    async def scenario(site: FedSite) -> None:
        body = {**BODY, "tool_choice": choice}
        asking = asyncio.create_task(answered(site, PATH, body, CALLS))
        await site.until(lambda: bool(site.engine.streams))
        held = site.engine.streams[0].generation.params.constraint
        assert held is not None
        assert held.kind == "structural_tag"
        assert "tags_with_separator" in held.text
        assert ("get_weather" in held.text) == (choice == "required")
        assert (await asking).json()["choices"][0]["finish_reason"] == "tool_calls"

    settings = ServerSettings(tool_call_parser="hermes", reasoning_parser="none")
    on_fed_server(scenario, settings)


def test_a_grammar_lets_the_model_reason_first() -> None:
    async def scenario(site: FedSite) -> None:
        body = {**BODY, "tool_choice": "required"}
        asking = asyncio.create_task(answered(site, PATH, body, TEXT))
        await site.until(lambda: bool(site.engine.streams))
        held = site.engine.streams[0].generation.params.constraint
        assert held is not None
        assert (held.reasoning_start, held.reasoning_end) == ("<think>", "</think>")
        await asking

    on_fed_server(scenario, HERMES)


def test_the_template_gets_the_tools_unless_none_may_be_called() -> None:
    async def scenario(site: FedSite) -> None:
        shown: list[Any] = []
        tokenized = site.engine.tokenized

        async def kept(generation: Any, images: Any) -> Any:
            shown.append(generation.tools)
            return await tokenized(generation, images)

        site.engine.tokenized = kept  # type: ignore[method-assign]
        for choice in ("auto", "none", None):
            response = await answered(site, PATH, {**BODY, "tool_choice": choice}, CALLS)
            found = whole_of(response.json()["choices"][0])
            assert (found["content"] == CALLS) == (choice == "none")
        assert shown == [TOOLS, None, TOOLS]

    on_fed_server(scenario, HERMES)


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"tools": [{"type": "function", "function": {}}]}, "tools"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"tools": None, "tool_choice": "required"}, "tool_choice"),
    ],
)
def test_tools_that_are_malformed_are_refused(extra: dict[str, Any], param: str) -> None:
    async def scenario(site: FedSite) -> None:
        response = await answered(site, PATH, {**BODY, **extra}, "")
        assert (response.status_code, response.json()["error"]["param"]) == (400, param)

    on_fed_server(scenario, HERMES)


@pytest.mark.parametrize(
    ("settings", "flag"),
    [
        (ServerSettings(tool_call_parser="none"), "--tool-call-parser"),
        (ServerSettings(enable_auto_tool_choice=False), "--enable-auto-tool-choice"),
    ],
)
def test_tools_that_are_switched_off_are_refused(settings: ServerSettings, flag: str) -> None:
    async def scenario(site: FedSite) -> None:
        response = await answered(site, PATH, BODY, "")
        assert response.status_code == 400
        assert flag in response.json()["error"]["message"]
        none = await answered(site, PATH, {**BODY, "tool_choice": "none"}, "Yes.")
        assert none.json()["choices"][0]["message"]["content"] == "Yes."

    on_fed_server(scenario, settings)


def test_token_ids_and_logprobs_of_calls_are_complete() -> None:
    async def scenario(site: FedSite) -> None:
        body = {**BODY, "return_token_ids": True, "logprobs": True}
        whole = (await answered(site, PATH, body, TEXT, seed=3)).json()
        (choice,) = whole["choices"]
        response = await answered(site, PATH, {**body, "stream": True}, TEXT, seed=3)
        chunks = [chunk["choices"][0] for chunk in events(response)]
        assert choice["token_ids"] == [id for one in chunks for id in one.get("token_ids", ())]
        assert choice["logprobs"]["content"] == [
            entry for one in chunks if one["logprobs"] for entry in one["logprobs"]["content"]
        ]
        assert len(choice["token_ids"]) == whole["usage"]["completion_tokens"]

    on_fed_server(scenario, HERMES)


def test_the_client_of_openai_reads_them() -> None:
    async def scenario(site: FedSite) -> None:
        port = site.server.servers[0].sockets[0].getsockname()[1]
        url = f"http://127.0.0.1:{port}/v1"
        async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            chat: Any = client.chat.completions
            model = site.app.state.context.models[0]
            asking = asyncio.create_task(chat.create(model=model, messages=TALK, tools=TOOLS))
            (stream,) = await site.streams()
            await feed(stream, {0: TEXT})
            (choice,) = (await asking).choices
            assert choice.finish_reason == "tool_calls"
            assert choice.message.content == "Let me look."
            assert choice.message.reasoning_content == THOUGHT
            assert [call.function.name for call in choice.message.tool_calls] == [
                "get_weather",
                "look",
            ]
            assert json.loads(choice.message.tool_calls[0].function.arguments)["days"][0] == 1

            async def streamed() -> Any:
                async with chat.stream(model=model, messages=TALK, tools=TOOLS) as reading:
                    return await reading.get_final_completion()

            asking = asyncio.create_task(streamed())
            (stream,) = await site.streams()
            await feed(stream, {0: TEXT}, seed=4)
            (choice,) = (await asking).choices
            assert choice.finish_reason == "tool_calls"
            assert choice.message.content == "Let me look."
            assert choice.message.tool_calls[0].function.arguments == ARGUMENTS

    on_fed_server(scenario, HERMES)
