"""Events of stored responses: in the background, after a break, and from the whole."""

import asyncio
from contextlib import suppress
from typing import Any

import httpx
import openai
import pytest

from tests.server.conftest import Play
from tests.server.fed import FedSite, on_fed_server
from tests.server.routes.test_response_items import BODY, check_events
from tests.server.sample_replies import HERMES, TEXT, answered, events
from tests.server.support import MODEL, Site

PATH = "/v1/responses"
SHORT: dict[str, Any] = {"model": MODEL, "input": "hello", "max_output_tokens": 12}
SHORT |= {"extra_body": {"temperature": 0, "ignore_eos": True}}
LONG = SHORT | {"max_output_tokens": 200}
IN_BACKGROUND = {"background": True, "stream": True}


async def numbered(stream: Any) -> list[Any]:
    return [event async for event in stream]


def text_of(found: list[Any]) -> str:
    return "".join(one.delta for one in found if one.type == "response.output_text.delta")


def test_a_stream_in_the_background_is_resumed_anywhere(on: Play) -> None:
    async def scenario(site: Site) -> None:
        client = site.openai.responses
        plain = await numbered(await client.create(**SHORT, stream=True))
        first = await numbered(await client.create(**SHORT, **IN_BACKGROUND))
        assert [one.type for one in first] == [one.type for one in plain]
        assert [one.sequence_number for one in first] == list(range(len(first)))
        whole = first[-1].response
        assert text_of(first) == text_of(plain) == whole.output_text
        assert (whole.background, whole.store, whole.status) == (True, True, "incomplete")
        assert (await client.retrieve(whole.id)).output_text == whole.output_text
        for after in (None, 0, 3, len(first) - 2, len(first) - 1, 999):
            given = {} if after is None else {"starting_after": after}
            rest = await numbered(await client.retrieve(whole.id, stream=True, **given))  # type: ignore[call-overload]
            assert rest == first[0 if after is None else after + 1 :]
        async with client.stream(response_id=whole.id, starting_after=4) as stream:
            numbers = [event.sequence_number async for event in stream]
        assert numbers == list(range(5, len(first)))

    on(scenario)


def test_a_client_may_go_away_and_come_back(on: Play) -> None:
    async def scenario(site: Site) -> None:
        client = site.openai.responses
        stream: Any = await client.create(**SHORT, **IN_BACKGROUND)
        seen: list[Any] = []
        async for event in stream:
            seen.append(event)
            if event.type == "response.output_text.delta":
                break
        await stream.close()
        name = seen[0].response.id
        two = [client.retrieve(name, stream=True, starting_after=len(seen) - 1) for _ in range(2)]
        one, other = await asyncio.gather(*map(numbered, await asyncio.gather(*two)))
        assert one == other
        assert [event.sequence_number for event in seen + one] == list(range(len(seen + one)))
        assert text_of(seen + one) == one[-1].response.output_text
        assert one[-1].response.usage.output_tokens == 12

    on(scenario)


@pytest.mark.parametrize("stream", [True, False])
def test_a_response_that_is_cancelled_ends_its_streams(on: Play, stream: bool) -> None:
    async def scenario(site: Site) -> None:
        client = site.openai.responses
        fields: dict[str, Any] = {**LONG, "background": True, "stream": stream}
        begun: Any = await client.create(**fields)
        if stream:
            begun = (await anext(begun)).response

        async def read() -> list[Any]:
            return await numbered(await client.retrieve(begun.id, stream=True))

        found, cancelled = await asyncio.gather(read(), client.cancel(begun.id))
        assert cancelled.status == "cancelled"
        assert (found[-1].type, found[-1].response.status) == ("response.incomplete", "cancelled")
        assert [one.sequence_number for one in found] == list(range(len(found)))

    on(scenario)


def test_a_response_that_fails_says_so_in_its_stream(on: Play) -> None:
    async def scenario(site: Site) -> None:
        fields = SHORT | {"input": "word " * 9000}
        found = await numbered(await site.openai.responses.create(**fields, **IN_BACKGROUND))
        assert [one.type for one in found] == ["response.created", "response.failed"]
        assert found[1].response.error.code == "context_length_exceeded"
        kept = await site.openai.responses.retrieve(found[0].response.id)
        assert (kept.status, kept.error) == ("failed", found[1].response.error)

    on(scenario)


def test_a_response_that_is_forgotten_while_it_runs_stays_forgotten(on: Play) -> None:
    async def scenario(site: Site) -> None:
        client = site.openai.responses
        stream: Any = await client.create(**LONG, **IN_BACKGROUND)
        name = (await anext(stream)).response.id
        await client.delete(name)
        await site.until(lambda: site.empty)
        with suppress(openai.APIError):  # its stream ends as that of a cancelled one, or with 404
            assert [event async for event in stream][-1].response.status == "cancelled"
        for streamed in (False, True):
            with pytest.raises(openai.NotFoundError):
                await client.retrieve(name, stream=streamed)

    on(scenario)


def test_any_stored_response_can_be_streamed(on: Play) -> None:
    async def scenario(site: Site) -> None:
        client = site.openai.responses
        fields: dict[str, Any] = {**SHORT, "top_logprobs": 2}
        whole = await client.create(**fields)
        behind = await client.create(**SHORT, background=True)
        found = await numbered(await client.retrieve(whole.id, stream=True))
        assert found[-1].response == whole
        assert text_of(found) == whole.output_text
        (delta,) = (one for one in found if one.type == "response.output_text.delta")
        assert len(delta.logprobs) == 12
        rest = await numbered(await client.retrieve(whole.id, stream=True, starting_after=2))
        assert rest == found[3:]
        later = await numbered(await client.retrieve(behind.id, stream=True))
        assert text_of(later) == whole.output_text  # it waited for the end
        wrong = await site.http.get(f"{PATH}/{whole.id}?starting_after=2")
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "starting_after")

    on(scenario)


def test_items_of_all_kinds_are_streamed_again() -> None:
    async def scenario(site: FedSite) -> None:
        whole = (await answered(site, PATH, BODY, TEXT)).json()
        port = site.server.servers[0].sockets[0].getsockname()[1]
        async with httpx.AsyncClient() as http:
            url = f"http://127.0.0.1:{port}{PATH}/{whole['id']}?stream=true"
            got = events(await http.get(url))
        assert got[-1]["response"] == whole
        assert [one["sequence_number"] for one in got] == list(range(len(got)))
        assert whole["completed_at"] >= whole["created_at"]
        assert [one["response"]["completed_at"] for one in got[:2]] == [None, None]
        for at, item in enumerate(whole["output"]):
            check_events(got, at, item)

    on_fed_server(scenario, HERMES)
