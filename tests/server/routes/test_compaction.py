"""A long conversation becomes its messages of the user and a summary, which can be sent back."""

import asyncio
from typing import Any

import httpx
import openai
import pytest

from paceline.server.responses.input import SUMMARY, compaction, messages, summary_of
from paceline.server.routes.responses import TASK
from tests.server.conftest import Play
from tests.server.fed import FedSite, on_fed_server
from tests.server.sample_replies import HERMES, feed
from tests.server.support import MODEL, Site

PATH = "/v1/responses/compact"
TALK: Any = [
    {"role": "developer", "content": "be brief"},
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": "the fox"},
    {"type": "function_call", "call_id": "a", "name": "look", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "a", "output": "a dog"},
    {"role": "user", "content": "and then?"},
]
SHORT: dict[str, Any] = {
    "max_output_tokens": 4,
    "extra_body": {"temperature": 0, "ignore_eos": True},
}


async def compacted(site: FedSite, text: str, **body: Any) -> tuple[httpx.Response, Any]:
    """The answer when the model writes a text, and what the engine was asked."""
    asked: list[Any] = []
    tokenized = site.engine.tokenized

    async def noted(generation: Any, images: Any) -> Any:
        asked.append(generation)
        return await tokenized(generation, images)

    site.engine.tokenized = noted
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{site.port}") as http:
        asking = asyncio.create_task(http.post(PATH, json={"model": None, **body}))
        await site.until(lambda: bool(site.engine.streams) or asking.done())
        if site.engine.streams:
            (stream,) = await site.streams()
            await feed(stream, {0: text})
        return await asking, (asked or [None])[-1]


def test_messages_of_the_user_stay_and_the_rest_is_summarized() -> None:
    async def scenario(site: FedSite) -> None:
        model = site.app.state.context.models[0]
        text = "<think>\nHm.\n</think>\n\nIt saw a fox.\n"
        answer, asked = await compacted(
            site, text, model=model, input=TALK, instructions="go", cache_salt="s", user="u"
        )
        assert answer.status_code == 200, answer.text
        body = answer.json()
        assert body["object"] == "response.compaction"
        assert body["usage"]["output_tokens"] > 0
        *kept, item = body["output"]
        assert [one["content"][0]["text"] for one in kept] == ["be brief", "hello", "and then?"]
        assert summary_of(item) == "It saw a fox."
        assert "It saw" not in answer.text
        assert [one["role"] for one in asked.messages] == [
            *("system", "developer", "user", "assistant", "tool", "user")
        ]
        assert asked.messages[-1]["content"] == f"and then?\n\n{TASK}"
        assert (asked.cache_salt, asked.tenant, asked.adapter) == ("s", "u", model)

    on_fed_server(scenario, HERMES)


def test_no_summary_is_an_error() -> None:
    async def scenario(site: FedSite) -> None:
        model = site.app.state.context.models[0]
        answer, _ = await compacted(site, " \n", model=model, input="hello")
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "empty_summary")

    on_fed_server(scenario)


def test_a_summary_is_read_as_a_turn_of_the_assistant() -> None:
    kept = [{"role": "user", "content": text} for text in ("a", "b")]
    item = compaction("cmp", "they greeted ü")
    talk = messages([*kept, dict(item), {"role": "user", "content": "c"}])
    assert talk == [
        {"role": "user", "content": "a\n\nb"},
        {"role": "assistant", "content": f"{SUMMARY}\n\nthey greeted ü"},
        {"role": "user", "content": "c"},
    ]


def test_a_conversation_goes_on_after_its_compaction(on: Play) -> None:
    async def scenario(site: Site) -> None:
        responses = site.openai.responses
        first = await responses.create(model=MODEL, input="hello", **SHORT)
        short = await responses.compact(model=MODEL, previous_response_id=first.id)
        user, item = short.output
        assert (user.type, item.type) == ("message", "compaction")
        sent: Any = [one.model_dump(exclude_none=True, warnings=False) for one in short.output]
        more: Any = {"role": "user", "content": "and the dog?"}
        second = await responses.create(model=MODEL, input=[*sent, more], **SHORT)
        said = f"{SUMMARY}\n\n{summary_of(item.model_dump())}"
        spelled = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": said}]
        whole = await responses.create(model=MODEL, input=[*spelled, more], **SHORT)  # type: ignore[list-item]
        assert second.output_text == whole.output_text
        small: Any = compaction("cmp", "they met")
        talk = await site.openai.conversations.create(items=[sent[0], small, more])
        found = await site.post(PATH, model=MODEL, conversation=talk.id)
        kept = found.json()["output"]
        assert [one["type"] for one in kept] == ["message", "message", "compaction"]

    on(scenario)


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"input": "a"}, 400, "model"),
        ({"model": "none", "input": "a"}, 404, "model"),
        ({"model": MODEL}, 400, "input"),
        ({"model": MODEL, "input": []}, 400, "input"),
        ({"model": MODEL, "input": "a " * 900}, 400, "input"),
        ({"model": MODEL, "previous_response_id": "no"}, 404, "previous_response_id"),
        ({"model": MODEL, "conversation": "no"}, 404, "conversation"),
    ],
)
def test_what_is_wrong_is_named(on: Play, body: dict[str, Any], status: int, param: str) -> None:
    async def scenario(site: Site) -> None:
        refused = await site.post(PATH, **body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (status, param)

    on(scenario)


@pytest.mark.parametrize("content", ["", "gAAAAABpM0Yj", "paceline-compaction-1:5", None])
def test_an_item_of_another_server_is_refused(on: Play, content: str | None) -> None:
    async def scenario(site: Site) -> None:
        item: Any = {"type": "compaction", "encrypted_content": content}
        with pytest.raises(openai.BadRequestError, match="encrypted_content"):
            await site.openai.responses.create(model=MODEL, input=[item], **SHORT)

    on(scenario)
