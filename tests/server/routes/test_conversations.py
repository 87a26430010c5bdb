"""Conversations that have an id: made, continued by responses, read, changed, forgotten."""

from dataclasses import dataclass
from typing import Any

import openai
import pytest

from paceline.engine.transport.front_end_link import PeerVerb
from paceline.server.context import ServerContext
from paceline.server.errors import ApiError
from paceline.server.responses.conversations import appended, conversation
from paceline.server.routes.conversations import checked_items
from paceline.server.routes.operations import answer_peer
from paceline.server.settings import ServerSettings
from tests.server.conftest import Play
from tests.server.support import DEFAULTS, MODEL, Site, on_its_own_server

SHORT: dict[str, Any] = {
    "model": MODEL,
    "max_output_tokens": 6,
    "extra_body": {"temperature": 0, "ignore_eos": True},
}
ITEMS: Any = [
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": "the fox"},
    {"type": "function_call", "call_id": "a", "name": "look", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "a", "output": "a dog"},
]


@dataclass
class OnePeer:
    """See `Peers`: one other front end, in this process."""

    context: ServerContext

    async def ask(self, verb: PeerVerb, names: tuple[str, ...]) -> list[Any]:
        return [await answer_peer(self.context, verb, names)]


async def texts(site: Site, name: str) -> list[str]:
    items = await site.openai.conversations.items.list(name, order="asc", limit=100)
    assert len({item.id for item in items.data}) == len(items.data)
    return [item.content[0].text for item in items.data]  # type: ignore[union-attr]


def test_a_conversation_is_made_described_and_deleted(on: Play) -> None:
    async def scenario(site: Site) -> None:
        talks = site.openai.conversations
        made = await talks.create(metadata={"topic": "dogs"})
        assert made.id.startswith("conv_")
        assert await talks.retrieve(made.id) == made
        changed = await talks.update(made.id, metadata={"topic": "cats"})
        assert changed.metadata == {"topic": "cats"}
        assert (await talks.retrieve(made.id)) == changed
        deleted = await talks.delete(made.id)
        assert (deleted.deleted, deleted.object) == (True, "conversation.deleted")
        with pytest.raises(openai.NotFoundError, match=r"Conversation with id .* not found"):
            await talks.retrieve(made.id)

    on(scenario)


def test_its_items_are_listed_added_and_removed(on: Play) -> None:
    async def scenario(site: Site) -> None:
        talks = site.openai.conversations
        made = await talks.create(items=ITEMS)
        listed: Any = (await talks.items.list(made.id, order="asc")).data
        first, second, call, output = listed
        assert [first.type, second.type, call.type, output.type] == [
            *("message", "message", "function_call", "function_call_output")
        ]
        assert first.content[0].type == "input_text"
        page = await talks.items.list(made.id, limit=3)
        assert page.has_more
        assert [item.id for item in page.data] == [output.id, call.id, second.id]
        again: Any = {"type": "message", "id": first.id, "role": "user", "content": "again"}
        added: Any = (await talks.items.create(made.id, items=[again])).data
        assert len(added) == 1
        assert added[0].id != first.id  # which it has already
        assert await talks.items.retrieve(added[0].id, conversation_id=made.id) == added[0]
        for gone in (call, output):
            talk = await talks.items.delete(gone.id, conversation_id=made.id)
            assert talk.id == made.id
        assert await texts(site, made.id) == ["hello", "the fox", "again"]
        for act in (talks.items.retrieve, talks.items.delete):
            with pytest.raises(openai.NotFoundError, match="Item with id"):
                await act(call.id, conversation_id=made.id)

    on(scenario)


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_reads_and_extends_it(on: Play, stream: bool) -> None:
    async def answered(site: Site, **fields: Any) -> Any:
        if not stream:
            return await site.openai.responses.create(**SHORT, **fields)
        async with site.openai.responses.stream(**SHORT, **fields) as events:
            *_, last = [event async for event in events]
            return last.response  # type: ignore[union-attr]

    async def scenario(site: Site) -> None:
        made = await site.openai.conversations.create(items=ITEMS[:2])
        first = await answered(site, input="and then?", conversation=made.id)
        assert first.conversation.id == made.id
        said = [*ITEMS[:2], {"role": "user", "content": "and then?"}]
        whole = await answered(site, input=said)
        assert first.output_text == whole.output_text
        assert whole.conversation is None
        assert first.usage.input_tokens == whole.usage.input_tokens
        second = await answered(site, input="why?", conversation={"id": made.id}, store=False)
        expected = ["hello", "the fox", "and then?", first.output_text, "why?", second.output_text]
        assert await texts(site, made.id) == expected

    on(scenario)


def test_a_response_in_the_background_extends_it(on: Play) -> None:
    async def scenario(site: Site) -> None:
        made = await site.openai.conversations.create()
        begun = await site.openai.responses.create(
            **SHORT, input="hello", conversation=made.id, background=True
        )
        await site.context.background.ended(begun.id)
        ended = await site.openai.responses.retrieve(begun.id)
        assert await texts(site, made.id) == ["hello", ended.output_text]

    on(scenario)


def test_a_response_that_fails_leaves_it_as_it_is(on: Play) -> None:
    async def scenario(site: Site) -> None:
        made = await site.openai.conversations.create(items=ITEMS[:1])
        with pytest.raises(openai.BadRequestError, match="maximum context length"):
            await site.openai.responses.create(**SHORT, input="a " * 900, conversation=made.id)
        assert await texts(site, made.id) == ["hello"]

    on(scenario)


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/responses", {"input": "a", "conversation": "conv_no"}, 404, "conversation"),
        ("/responses", {"input": "a", "conversation": {}}, 400, "conversation"),
        (
            "/responses",
            {"input": "a", "conversation": "a", "previous_response_id": "b"},
            400,
            "previous_response_id",
        ),
        ("/conversations", {"items": [{"type": "web_search_call"}]}, 400, "items"),
        ("/conversations", {"items": ["hello"]}, 400, "items"),
        ("/conversations", {"metadata": {"a": 5}}, 400, "metadata"),
        ("/conversations", {"metadata": {str(key): "a" for key in range(17)}}, 400, "metadata"),
        ("/conversations/conv_no", {}, 400, "metadata"),
        ("/conversations/conv_no", {"metadata": {}}, 404, "conversation_id"),
        ("/conversations/conv_no/items", {"items": []}, 400, "items"),
        ("/conversations/conv_no/items", {"items": ITEMS}, 404, "conversation_id"),
    ],
)
def test_what_is_wrong_is_named(
    on: Play, path: str, body: dict[str, Any], status: int, param: str
) -> None:
    async def scenario(site: Site) -> None:
        refused = await site.post(f"/v1{path}", **body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (status, param)

    on(scenario)


def test_a_conversation_is_no_response(on: Play) -> None:
    async def scenario(site: Site) -> None:
        made = await site.openai.conversations.create()
        for act in (site.openai.responses.retrieve, site.openai.responses.delete):
            with pytest.raises(openai.NotFoundError):
                await act(made.id)
        assert await site.openai.conversations.retrieve(made.id) == made

    on(scenario)


def test_the_oldest_are_forgotten_and_large_ones_refused() -> None:
    async def scenario(site: Site) -> None:
        talks = site.openai.conversations
        first, second = await talks.create(), await talks.create()
        large: Any = {"role": "user", "content": "a" * 3000}
        with pytest.raises(openai.APIStatusError, match="--stored-response-bytes") as refused:
            await talks.create(items=[large])
        assert refused.value.status_code == 413
        with pytest.raises(openai.APIStatusError, match="--stored-response-bytes") as refused:
            await talks.items.create(first.id, items=[large])
        assert refused.value.status_code == 413
        await talks.items.create(first.id, items=ITEMS[:1])  # so that the second is the oldest
        await talks.create()
        assert await texts(site, first.id) == ["hello"]
        with pytest.raises(openai.NotFoundError):
            await talks.retrieve(second.id)

    on_its_own_server(scenario, ServerSettings(max_stored_responses=2, stored_response_bytes=3000))


def test_a_turn_that_no_longer_fits_is_an_error() -> None:
    async def scenario(site: Site) -> None:
        made = await site.openai.conversations.create()
        body: Any = {**SHORT, "input": "a" * 60, "conversation": made.id}
        refused = await site.post("/v1/responses", **body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (413, "body_too_large")
        streamed = await site.post("/v1/responses", **body, stream=True)
        assert '"type":"error"' in streamed.text.splitlines()[-2]
        assert await texts(site, made.id) == []

    on_its_own_server(scenario, ServerSettings(stored_response_bytes=800))


def test_other_processes_find_and_change_it(on: Play) -> None:
    """The two contexts stand for two front ends, which ask each other by `answer_peer`."""

    async def scenario(site: Site) -> None:
        here = site.context
        other = ServerContext(site.engine, MODEL, here.tokenizer, DEFAULTS)
        other.peers = OnePeer(here)
        made = await site.openai.conversations.create(items=ITEMS[:1])
        found = await conversation(other, made.id)
        added = await appended(other, made.id, checked_items(ITEMS[1:2]))
        assert await texts(site, made.id) == ["hello", "the fox"]
        await conversation(other, made.id, "omit", next(iter(found.items)))
        await conversation(other, made.id, "describe", '{"a":"b"}')
        assert (await site.openai.conversations.retrieve(made.id)).metadata == {"a": "b"}
        assert [item["id"] for item in added] == [*(await conversation(here, made.id)).items]
        assert other.responses.conversation(made.id) is None  # it stays where it is
        await conversation(other, made.id, "forget")
        for context in (here, other):
            with pytest.raises(ApiError, match="not found"):
                await conversation(context, made.id)

    on(scenario)


def test_a_server_that_stores_nothing_says_so() -> None:
    async def scenario(site: Site) -> None:
        refused = await site.post("/v1/conversations")
        assert refused.status_code == 400
        assert "--enable-responses-store" in refused.json()["error"]["message"]
        refused = await site.post("/v1/responses", input="a", conversation="b")
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "conversation")

    on_its_own_server(scenario, ServerSettings(enable_responses_store=False))
