"""Tool use and thinking of /v1/messages, whole and streamed."""

import asyncio
import json
from typing import Any

import anthropic
import pytest

from paceline.server.settings import ServerSettings
from tests.server.fed import FedSite, on_fed_server
from tests.server.sample_replies import (
    ARGUMENTS,
    CALLS,
    HERMES,
    SCHEMA,
    TALK,
    TEXT,
    THOUGHT,
    answered,
    events,
    feed,
)

PATH = "/v1/messages"
TOOLS = [
    {"name": "get_weather", "description": "Weather of a city", "input_schema": SCHEMA},
    {"name": "look", "input_schema": {"type": "object"}},
]
BODY: dict[str, Any] = {"messages": TALK, "tools": TOOLS, "max_tokens": 500}
DIRECT = {"caller": {"type": "direct"}}
EXPECTED = [
    {"type": "thinking", "thinking": THOUGHT, "signature": ""},
    {"type": "text", "text": "Let me look.", "citations": None},
    {"type": "tool_use", "name": "get_weather", "input": json.loads(ARGUMENTS), **DIRECT},
    {"type": "tool_use", "name": "look", "input": {}, **DIRECT},
]


def without_ids(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in one.items() if name != "id"} for one in blocks]


def blocks_of(got: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The blocks that the events of a stream add up to."""
    blocks: list[dict[str, Any]] = []
    texts: list[str] = []
    for event in got:
        match event["type"]:
            case "content_block_start":
                assert event["index"] == len(blocks)
                blocks.append(event["content_block"])
                texts = []
            case "content_block_delta":
                (text,) = (value for name, value in event["delta"].items() if name != "type")
                texts.append(text)
            case "content_block_stop":
                kind = blocks[-1]["type"]
                field = "input" if kind == "tool_use" else kind
                text = "".join(texts)
                blocks[-1][field] = json.loads(text) if kind == "tool_use" else text
            case _:
                pass
    return blocks


def test_blocks_come_one_after_another() -> None:
    async def scenario(site: FedSite) -> None:
        whole = (await answered(site, PATH, BODY, TEXT)).json()
        assert without_ids(whole["content"]) == EXPECTED
        assert whole["stop_reason"] == "tool_use"
        for seed in range(6):
            got = events(await answered(site, PATH, {**BODY, "stream": True}, TEXT, seed=seed))
            assert without_ids(blocks_of(got)) == EXPECTED
            assert got[-2]["delta"]["stop_reason"] == "tool_use"
            assert got[-2]["usage"]["output_tokens"] > 0
            kinds = [one["type"] for one in got]
            assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 4

    on_fed_server(scenario, HERMES)


def test_a_call_that_is_cut_off_shows_its_text() -> None:
    async def scenario(site: FedSite) -> None:
        whole = (await answered(site, PATH, BODY, CALLS[:70], reason="length")).json()
        (block,) = whole["content"]
        assert ARGUMENTS.startswith(block["input"]["INVALID_JSON"])
        assert whole["stop_reason"] != "tool_use"

    on_fed_server(scenario, HERMES)


@pytest.mark.parametrize(
    ("choice", "calls"),
    [
        ({"type": "auto", "disable_parallel_tool_use": True}, 1),
        ({"type": "auto"}, 2),
        ({"type": "any"}, 2),
        ({"type": "tool", "name": "look"}, 2),
        ({"type": "none"}, 0),
    ],
)
def test_the_choice_is_kept(choice: dict[str, Any], calls: int) -> None:
    async def scenario(site: FedSite) -> None:
        asking = asyncio.create_task(answered(site, PATH, {**BODY, "tool_choice": choice}, CALLS))
        await site.until(lambda: bool(site.engine.streams))
        held = site.engine.streams[0].generation.params.constraint
        assert (held is not None) == (choice["type"] in ("any", "tool"))
        whole = (await asking).json()
        assert [one["type"] for one in whole["content"]] == (["tool_use"] * calls or ["text"])

    on_fed_server(scenario, HERMES)


def test_thinking_is_a_variable_of_the_template() -> None:
    async def scenario(site: FedSite) -> None:
        seen: list[Any] = []
        tokenized = site.engine.tokenized

        async def kept(generation: Any, images: Any) -> Any:
            seen.append(generation.variables)
            return await tokenized(generation, images)

        site.engine.tokenized = kept  # type: ignore[method-assign]
        for thinking in ({"type": "enabled", "budget_tokens": 1024}, {"type": "disabled"}, None):
            body = {"messages": TALK, "max_tokens": 9, "thinking": thinking}
            await answered(site, PATH, body, "Yes.")
        assert seen == [{"enable_thinking": True}, {"enable_thinking": False}, None]

    on_fed_server(scenario, HERMES)


@pytest.mark.parametrize("thinking", [{"type": "enabled"}, {"type": "always"}])
def test_thinking_that_cannot_be_had_is_refused(thinking: dict[str, Any]) -> None:
    async def scenario(site: FedSite) -> None:
        response = await answered(site, PATH, {**BODY, "thinking": thinking}, "")
        assert response.status_code == 400
        assert "thinking" in response.json()["error"]["message"]

    on_fed_server(scenario, ServerSettings(reasoning_parser="none"))


def test_the_client_of_anthropic_reads_them() -> None:
    async def scenario(site: FedSite) -> None:
        port = site.server.servers[0].sockets[0].getsockname()[1]
        async with anthropic.AsyncAnthropic(
            base_url=f"http://127.0.0.1:{port}", api_key="none", max_retries=0
        ) as client:
            messages: Any = client.messages
            body = {"model": site.app.state.context.models[0], **BODY}

            async def streamed() -> Any:
                async with messages.stream(**body) as reading:
                    return await reading.get_final_message()

            for ask in (lambda: messages.create(**body), streamed):
                asking = asyncio.create_task(ask())
                (stream,) = await site.streams()
                await feed(stream, {0: TEXT}, seed=4)
                final = await asking
                assert [one.type for one in final.content] == [
                    *("thinking", "text"),
                    *("tool_use", "tool_use"),
                ]
                assert final.content[2].input == json.loads(ARGUMENTS)
                assert final.stop_reason == "tool_use"

    on_fed_server(scenario, HERMES)
