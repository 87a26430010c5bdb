"""/v1/responses as the real client reads it."""

import asyncio
import json
from typing import Any

import pytest
from openai import BadRequestError

from paceline.core.plan import Plan
from paceline.engine.api import SamplingParams
from tests.engine.support import expected, expected_text, tokenizer
from tests.server.conftest import Play
from tests.server.support import MODEL, Site, on_its_own_server, slow

ALL = {"ignore_eos": True, "seed": 3}


def told(site: Site, messages: list[dict[str, str]], most: int) -> str:
    """What any correct engine answers."""
    prompt = tokenizer().encode(site.context.template.render(messages), special=False)
    params = SamplingParams(max_tokens=most, ignore_eos=True, seed=3)
    return expected_text(*expected(prompt, params))


def test_a_text_is_answered(on: Play) -> None:
    async def scenario(site: Site) -> None:
        response = await site.openai.responses.create(
            model=MODEL, input="hello", max_output_tokens=9, extra_body=ALL, metadata={"a": "b"}
        )
        assert response.output_text == told(site, [{"role": "user", "content": "hello"}], 9)
        assert (response.status, response.object) == ("incomplete", "response")
        assert response.incomplete_details is not None
        assert response.incomplete_details.reason == "max_output_tokens"
        assert response.usage is not None
        assert response.usage.output_tokens == 9
        assert response.usage.total_tokens == response.usage.input_tokens + 9
        assert response.metadata == {"a": "b"}
        assert response.max_output_tokens == 9
        ended = await site.openai.responses.create(
            model=MODEL, input="hello", extra_body={"stop_token_ids": list(range(400))}
        )
        assert (ended.status, ended.incomplete_details) == ("completed", None)

    on(scenario)


def test_cached_tokens_are_told(on: Play) -> None:
    async def scenario(site: Site) -> None:
        cached: list[int] = []
        for _ in range(2):
            asked = {"input": "the quick brown fox", "max_tokens": 1, "cache_salt": "responses"}
            got = (await site.post("/v1/responses", **asked)).json()
            cached.append(got["usage"]["input_tokens_details"]["cached_tokens"])
        assert cached[1] > cached[0] == 0

    on(scenario)


def test_messages_and_instructions_are_a_conversation(on: Play) -> None:
    async def scenario(site: Site) -> None:
        given: list[Any] = [
            {"role": "user", "content": [{"type": "input_text", "text": "the quick"}]},
            {
                "type": "message",
                "role": "assistant",
                "content": [
                    {"type": "output_text", "text": "brown "},
                    {"type": "text", "text": "fox"},
                ],
            },
            {"role": "developer", "content": "jumps"},
        ]
        response = await site.openai.responses.create(
            model=MODEL, input=given, instructions="over", max_output_tokens=5, extra_body=ALL
        )
        conversation = [
            {"role": "system", "content": "over"},
            {"role": "user", "content": "the quick"},
            {"role": "assistant", "content": "brown fox"},
            {"role": "system", "content": "jumps"},
        ]
        assert response.output_text == told(site, conversation, 5)
        assert response.instructions == "over"

    on(scenario)


def test_a_stream_has_the_events_that_the_client_knows(on: Play) -> None:
    async def scenario(site: Site) -> None:
        async with site.openai.responses.stream(
            model=MODEL, input="hello", max_output_tokens=30, extra_body=ALL
        ) as stream:
            events = [event async for event in stream]
        assert events[-1].type == "response.incomplete"
        final = events[-1].response
        kinds = [event.type for event in events]
        assert kinds[:4] == [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
        ]
        assert kinds[-4:] == [
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.incomplete",
        ]
        assert set(kinds[4:-4]) == {"response.output_text.delta"}
        assert [event.sequence_number for event in events] == list(range(len(events)))
        text = told(site, [{"role": "user", "content": "hello"}], 30)
        deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
        assert "".join(deltas) == final.output_text == text
        assert len(deltas) > 1
        assert final.usage is not None
        assert final.usage.output_tokens == 30
        async with site.openai.responses.stream(
            model=MODEL, input="hello", extra_body={"stop_token_ids": list(range(400))}
        ) as stream:
            assert (await stream.get_final_response()).status == "completed"

    on(scenario)


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"conversation": 5}, "conversation"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"text": {"format": {"type": "yaml"}}}, "text"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text"),
        ({"n": 2}, "n"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input"),
        ({"input": [{"role": "user"}]}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input"),
        ({"input": [{"role": "user", "content": ["hello"]}]}, "input"),
        ({"temperature": -1.0}, "temperature"),
    ],
)
def test_what_there_is_not_is_refused_by_name(on: Play, wrong: dict[str, Any], param: str) -> None:
    async def scenario(site: Site) -> None:
        given = wrong.get("input", "hello")
        with pytest.raises(BadRequestError) as refused:
            await site.openai.responses.create(model=MODEL, input=given, extra_body=wrong)
        assert refused.value.param == param

    on(scenario)


def test_cuts_and_failures_are_told() -> None:
    failing = {"now": False}

    def breaks(plan: Plan, where: str) -> bool:
        slow(plan, where)
        return failing["now"] and where == "wait"

    async def scenario(site: Site) -> None:
        body = {"input": "hello", "ignore_eos": True, "timings": True}
        asking = asyncio.create_task(site.post("/v1/responses", **body, timeout=1.0))
        await site.until_told()
        await site.engine.pause("all")
        cut = (await asking).json()
        await site.engine.resume()
        assert cut["status"] == "incomplete"
        assert cut["incomplete_details"] == {"reason": "timeout"}
        assert cut["timings"]["total_s"] >= 1.0
        failing["now"] = True
        assert (await site.post("/v1/responses", **body)).status_code == 500
        failing["now"] = False
        headers = {"X-Request-Id": "mine"}
        async with site.http.stream(
            "POST", "/v1/responses", json={**body, "stream": True}, headers=headers
        ) as stream:
            lines = stream.aiter_lines()
            await anext(lines)
            await site.post("/abort_requests", request_ids=["mine"])
            said = "".join([line async for line in lines])
        last = json.loads(said.rpartition("data: ")[2])
        assert last["type"] == "response.incomplete"
        assert last["response"]["status"] == "cancelled"
        assert last["response"]["incomplete_details"] == {"reason": "abort"}
        events: list[Any] = []
        async for event in await site.openai.responses.create(
            model=MODEL, input="hello", stream=True, extra_body={"ignore_eos": True}
        ):
            events.append(event)
            failing["now"] = event.type == "response.output_text.delta"
        failing["now"] = False
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert (events[-1].type, events[-1].code) == ("error", "engine_failed")
        assert "failed" in events[-1].message

    on_its_own_server(scenario, breaks=breaks)
