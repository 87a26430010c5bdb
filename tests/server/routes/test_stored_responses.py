"""Responses that are kept: read again, continued, run in the background, cancelled, forgotten."""

from typing import Any

import openai
import pytest

from paceline.server.settings import ServerSettings
from tests.server.conftest import Play
from tests.server.support import MODEL, Site, on_its_own_server

PATH = "/v1/responses"
SHORT = {"max_output_tokens": 6, "extra_body": {"temperature": 0, "ignore_eos": True}}
LONG = {"max_output_tokens": 200, "extra_body": {"temperature": 0, "ignore_eos": True}}


async def created(site: Site, **fields: Any) -> Any:
    return await site.openai.responses.create(model=MODEL, **{**SHORT, **fields})


async def until_ended(site: Site, name: str) -> Any:
    while True:
        found = await site.openai.responses.retrieve(name)
        if found.status not in ("queued", "in_progress"):
            return found


def test_a_response_can_be_read_again(on: Play) -> None:
    async def scenario(site: Site) -> None:
        whole = await created(site, input="hello")
        assert whole.store
        assert await site.openai.responses.retrieve(whole.id) == whole
        async with site.openai.responses.stream(model=MODEL, input="hello", **SHORT) as stream:
            *_, last = [event async for event in stream]
        final: Any = last.response  # type: ignore[union-attr]
        found = await site.openai.responses.retrieve(final.id)
        assert found.output_text == final.output_text == whole.output_text
        unkept = await created(site, input="hello", store=False)
        assert not unkept.store
        with pytest.raises(openai.NotFoundError, match=r"Response with id .* not found"):
            await site.openai.responses.retrieve(unkept.id)

    on(scenario)


def test_a_conversation_is_continued_by_its_id(on: Play) -> None:
    async def scenario(site: Site) -> None:
        first = await created(site, input="hello", instructions="be brief")
        second = await created(site, input="the fox", previous_response_id=first.id)
        third = await created(site, input="and the dog", previous_response_id=second.id)
        assert third.previous_response_id == second.id
        said = [
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": first.output_text},
            {"role": "user", "content": "the fox"},
            {"role": "assistant", "content": second.output_text},
            {"role": "user", "content": "and the dog"},
        ]
        whole = await created(site, input=said)
        assert third.output_text == whole.output_text
        assert third.usage.input_tokens == whole.usage.input_tokens
        # Another continuation of the first one does not see the second.
        other = await created(site, input="and the dog", previous_response_id=first.id)
        assert other.output_text == (await created(site, input=[*said[:2], said[4]])).output_text

    on(scenario)


def test_what_preceded_a_response_is_listed(on: Play) -> None:
    async def scenario(site: Site) -> None:
        first = await created(site, input="hello")
        second = await created(site, input="the fox", previous_response_id=first.id)
        listed = await site.openai.responses.input_items.list(second.id, order="asc")
        texts = [item.content[0].text for item in listed.data]  # type: ignore[union-attr]
        assert texts == ["hello", first.output_text, "the fox"]
        assert len({item.id for item in listed.data}) == 3
        latest = await site.openai.responses.input_items.list(second.id, limit=2)
        assert [item.id for item in latest.data] == [item.id for item in listed.data[:0:-1]]
        assert latest.has_more
        rest = await site.openai.responses.input_items.list(second.id, after=latest.data[-1].id)
        assert [item.id for item in rest.data] == [listed.data[0].id]
        wrong = await site.http.get(f"{PATH}/{second.id}/input_items?after=nothing")
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "after")

    on(scenario)


def test_a_response_in_the_background_is_answered_at_once(on: Play) -> None:
    async def scenario(site: Site) -> None:
        begun = await created(site, input="hello", background=True)
        assert (begun.status, begun.background, begun.output) == ("queued", True, [])
        ended = await until_ended(site, begun.id)
        expected = await created(site, input="hello")
        assert (ended.status, ended.output_text) == ("incomplete", expected.output_text)
        assert ended.usage.output_tokens == 6
        again = await site.openai.responses.cancel(begun.id)  # it has ended
        assert again.output_text == ended.output_text

    on(scenario)


def test_a_response_in_the_background_is_cancelled(on: Play) -> None:
    async def scenario(site: Site) -> None:
        begun = await created(site, input="hello", background=True, **LONG)
        with pytest.raises(openai.BadRequestError, match="only one that has ended"):
            await created(site, input="more", previous_response_id=begun.id)
        cancelled = await site.openai.responses.cancel(begun.id)
        assert cancelled.status == "cancelled"
        await site.until(lambda: site.empty)
        assert (await site.openai.responses.retrieve(begun.id)).status == "cancelled"
        synchronous = await created(site, input="hello")
        with pytest.raises(openai.BadRequestError, match="Cannot cancel a synchronous response"):
            await site.openai.responses.cancel(synchronous.id)
        with pytest.raises(openai.NotFoundError):
            await site.openai.responses.cancel("resp-unknown")

    on(scenario)


def test_a_response_in_the_background_may_fail(on: Play) -> None:
    async def scenario(site: Site) -> None:
        begun = await created(site, input="word " * 9000, background=True)
        ended = await until_ended(site, begun.id)
        assert ended.status == "failed"
        assert ended.error.code == "context_length_exceeded"
        assert "maximum context length" in ended.error.message

    on(scenario)


def test_a_response_in_the_background_that_is_too_large_ends_with_an_error() -> None:
    async def scenario(site: Site) -> None:
        refused = await site.post(PATH, input="word " * 2000, background=True)
        assert (refused.status_code, refused.json()["error"]["param"]) == (413, "background")
        assert "--stored-response-bytes" in refused.json()["error"]["message"]
        scored = {"top_logprobs": 20, "include": ["message.output_text.logprobs"]}
        for streams in (False, True):
            begun = await created(site, input="hello", background=True, stream=streams, **scored)
            if streams:
                first, *_, last = [event async for event in begun]
                assert last.type == "error"
                begun = first.response
            ended = await until_ended(site, begun.id)
            assert (ended.status, ended.output) == ("failed", [])
            assert ended.error.code == "response_too_large"
            assert "a store of 6000 cannot keep it" in ended.error.message

    on_its_own_server(scenario, ServerSettings(stored_response_bytes=6000))


def test_a_response_can_be_forgotten(on: Play) -> None:
    async def scenario(site: Site) -> None:
        whole = await created(site, input="hello")
        await site.openai.responses.delete(whole.id)
        with pytest.raises(openai.NotFoundError):
            await site.openai.responses.retrieve(whole.id)
        with pytest.raises(openai.NotFoundError):
            await site.openai.responses.delete(whole.id)

    on(scenario)


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"background": True, "store": False}, 400, "background"),
        ({"previous_response_id": "resp-unknown"}, 404, "previous_response_id"),
    ],
)
def test_what_needs_the_store_is_refused_without(
    on: Play, fields: dict[str, Any], status: int, param: str
) -> None:
    async def scenario(site: Site) -> None:
        response = await site.post(PATH, input="hello", **fields)
        assert (response.status_code, response.json()["error"]["param"]) == (status, param)

    on(scenario)


def test_a_server_may_store_nothing() -> None:
    async def scenario(site: Site) -> None:
        whole = await created(site, input="hello")
        assert not whole.store
        assert (await site.http.get(f"{PATH}/{whole.id}")).status_code == 404
        for name, value in (
            ("store", True),
            ("background", True),
            ("previous_response_id", whole.id),
        ):
            response = await site.post(PATH, input="hello", **{name: value})
            assert (response.status_code, response.json()["error"]["param"]) == (400, name)

    on_its_own_server(scenario, ServerSettings(enable_responses_store=False))


# -- log-probabilities -------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "alternatives"),
    [
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 3}, 3),
        ({"include": ["message.output_text.logprobs"]}, 0),
        ({"top_logprobs": 2}, 2),
    ],
)
def test_tokens_have_log_probabilities(on: Play, fields: dict[str, Any], alternatives: int) -> None:
    async def scenario(site: Site) -> None:
        whole = await created(site, input="hello", **fields)
        scores = whole.output[0].content[0].logprobs
        assert len(scores) == 6
        assert {len(one.top_logprobs) for one in scores} == {alternatives}
        joined = b"".join(bytes(one.bytes) for one in scores)
        assert joined.decode(errors="replace") == whole.output_text
        async with site.openai.responses.stream(
            model=MODEL, input="hello", **SHORT, **fields
        ) as stream:
            events = [event async for event in stream]
        deltas = [one for one in events if one.type == "response.output_text.delta"]
        streamed = [score.token for one in deltas for score in one.logprobs]
        assert streamed == [one.token for one in scores]
        (done,) = (one for one in events if one.type == "response.output_text.done")
        assert len(done.logprobs) == 6

    on(scenario)


def test_more_alternatives_than_allowed_are_refused(on: Play) -> None:
    async def scenario(site: Site) -> None:
        response = await site.post(PATH, input="hello", top_logprobs=21)
        assert (response.status_code, response.json()["error"]["param"]) == (400, "top_logprobs")

    on(scenario)
