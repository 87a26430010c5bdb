"""Function calls and reasoning of /v1/responses, whole and streamed."""

import asyncio
from typing import Any

import pytest
from openai import AsyncOpenAI

from tests.server.fed import FedSite, on_fed_server
from tests.server.sample_replies import (
    ARGUMENTS,
    CALLS,
    HERMES,
    TEXT,
    THOUGHT,
    WEATHER,
    answered,
    events,
    feed,
)

PATH = "/v1/responses"
TOOLS = [{"type": "function", **WEATHER}, {"type": "function", "name": "look"}]
BODY: dict[str, Any] = {"input": "Will it rain?", "tools": TOOLS}


def without_ids(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Calls have random ids; those of items begin with the id of the response."""
    return [{k: v for k, v in one.items() if k not in ("id", "call_id")} for one in items]


def test_items_come_one_after_another() -> None:
    async def scenario(site: FedSite) -> None:
        whole = (await answered(site, PATH, BODY, TEXT)).json()
        reasoning, message, first, second = whole["output"]
        assert (reasoning["type"], reasoning["content"][0]["text"]) == ("reasoning", THOUGHT)
        assert message["content"][0]["text"] == "Let me look."
        assert (first["name"], first["arguments"]) == ("get_weather", ARGUMENTS)
        assert (second["name"], second["arguments"]) == ("look", "{}")
        assert {one["status"] for one in whole["output"]} == {"completed"} == {whole["status"]}
        assert first["call_id"] != second["call_id"]
        unset = {"description": None, "parameters": None, "strict": None}
        assert whole["tools"] == [unset | one for one in TOOLS]
        for seed in range(6):
            got = events(await answered(site, PATH, {**BODY, "stream": True}, TEXT, seed=seed))
            assert [one["sequence_number"] for one in got] == list(range(len(got)))
            last = got[-1]["response"]
            assert got[-1]["type"] == "response.completed"
            assert without_ids(last["output"]) == without_ids(whole["output"])
            done = [one["item"] for one in got if one["type"] == "response.output_item.done"]
            assert done == last["output"]
            for at, item in enumerate(last["output"]):
                check_events(got, at, item)

    on_fed_server(scenario, HERMES)


def check_events(got: list[dict[str, Any]], at: int, item: dict[str, Any]) -> None:
    """The events of an item begin with it, and their deltas add up to its text."""
    own = [one for one in got if one.get("output_index") == at]
    assert (own[0]["type"], own[-1]["type"]) == (
        "response.output_item.added",
        "response.output_item.done",
    )
    assert own[0]["item"]["id"] == item["id"]
    assert own[0]["item"]["status"] == "in_progress"
    assert {one["item_id"] for one in own[1:-1]} == {item["id"]}
    text = "".join(one["delta"] for one in own if one["type"].endswith(".delta"))
    (ended,) = [
        one for one in own if one["type"].endswith((".text.done", "_text.done", "arguments.done"))
    ]
    if item["type"] == "function_call":
        assert text == item["arguments"] == ended["arguments"]
    else:
        assert text == item["content"][0]["text"] == ended["text"]


@pytest.mark.parametrize("stream", [False, True])
def test_the_last_item_is_incomplete_if_the_answer_is(stream: bool) -> None:
    async def scenario(site: FedSite) -> None:
        body = {**BODY, "stream": stream}
        response = await answered(site, PATH, body, CALLS[:60], reason="length")
        found = events(response)[-1]["response"] if stream else response.json()
        (call,) = found["output"]
        assert (call["status"], found["status"]) == ("incomplete", "incomplete")

    on_fed_server(scenario, HERMES)


@pytest.mark.parametrize("stream", [False, True])
def test_without_any_text_there_is_an_empty_message(stream: bool) -> None:
    async def scenario(site: FedSite) -> None:
        response = await answered(site, PATH, {**BODY, "stream": stream}, "")
        found = events(response)[-1]["response"] if stream else response.json()
        (message,) = found["output"]
        assert message["content"][0]["text"] == ""

    on_fed_server(scenario, HERMES)


def test_the_client_of_openai_reads_them() -> None:
    async def scenario(site: FedSite) -> None:
        port = site.server.servers[0].sockets[0].getsockname()[1]
        url = f"http://127.0.0.1:{port}/v1"
        async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            responses: Any = client.responses
            model = site.app.state.context.models[0]

            async def streamed() -> Any:
                async with responses.stream(
                    model=model, input="Will it rain?", tools=TOOLS[1:]
                ) as reading:
                    return await reading.get_final_response()

            asking = asyncio.create_task(streamed())
            (stream,) = await site.streams()
            await feed(stream, {0: TEXT}, seed=4)
            final = await asking
            assert final.output_text == "Let me look."
            assert [one.type for one in final.output] == [
                *("reasoning", "message"),
                *("function_call", "function_call"),
            ]
            assert final.output[2].arguments == ARGUMENTS

    on_fed_server(scenario, HERMES)
