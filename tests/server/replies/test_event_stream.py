"""How the events of a stream leave: in order, together, and whatever the client does."""

import asyncio
import gc
import json
import random
from typing import Any
from unittest.mock import patch

import httpx
import pytest

from paceline.engine.api import EngineFailed, TextDelta
from paceline.server.replies import event_stream
from paceline.server.routes import completions
from paceline.server.settings import ServerSettings
from tests.server.fed import FedSite, on_fed_server
from tests.server.reference_writers import references
from tests.server.test_written_events import (
    BODIES,
    CHAT,
    COMPLETIONS,
    PIECES,
    RandomDeltas,
    _stream,
)

TEXT = json.dumps({**BODIES[COMPLETIONS], "max_tokens": 500, "stream": True}).encode()


def texts(chunks: list[bytes]) -> list[str]:
    """The texts of the events of a completion, without those that have none."""
    events = b"".join(chunks).decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    found = [json.loads(one.removeprefix("data: "))["choices"][0]["text"] for one in events[:-2]]
    return [text for text in found if text]


def test_a_stream_may_end_in_the_delivery_that_began_it() -> None:
    async def scenario(site: FedSite) -> None:
        client = await site.client()
        client.post(COMPLETIONS, TEXT)
        (stream,) = await site.streams()
        stream.text("a", "b", "c")
        stream.end()
        await client.head()
        assert texts(await client.chunks()) == ["a", "bc"]

    on_fed_server(scenario)


def test_a_delta_without_text_does_not_end_the_body() -> None:
    async def scenario(site: FedSite) -> None:
        client = await site.client()
        client.post(COMPLETIONS, TEXT)
        (stream,) = await site.streams()
        stream.text("")
        await client.head()
        stream.text("", "a")
        stream.end()
        assert texts(await client.chunks()) == ["a"]

    on_fed_server(scenario)


def test_what_is_delivered_in_one_turn_leaves_in_one_write() -> None:
    async def scenario(site: FedSite) -> None:
        client = await site.client()
        body = {"prompt": ["a", "b"], "n": 2, "stream": True}
        client.post(COMPLETIONS, json.dumps(body).encode())
        one, two = await site.streams(2)
        one.text("a")
        await client.head()
        assert await client.chunk()
        (connection,) = site.server.server_state.connections
        transport: Any = connection.transport
        with patch.object(transport, "write", wraps=transport.write) as write:
            for index in range(2):
                one.text("b", "c", index=index)
                two.text("d", index=index)
            assert not write.called
            found = [json.loads((await client.chunk())[6:]) for _ in range(6)]
            assert write.call_count == 1
        choices = [one["choices"][0] for one in found]
        assert [(choice["index"], choice["text"]) for choice in choices] == [
            *((0, "b"), (0, "c"), (2, "d")),
            *((1, "b"), (1, "c"), (3, "d")),
        ]
        one.end()
        two.end()
        assert (await client.chunks())[-1] == b"data: [DONE]\n\n"

    on_fed_server(scenario)


def test_deltas_for_a_slow_reader_wait_joined_and_lose_nothing() -> None:
    async def scenario(site: FedSite) -> None:
        client = await site.client(limit=2048)
        client.post(COMPLETIONS, TEXT)
        (stream,) = await site.streams()
        stream.text("first ")
        await client.head()
        sent = ["first "]
        while len(sent) < 1000:
            sent.append(f"{len(sent)} " * 300)
            stream.text(sent[-1])
            await asyncio.sleep(0)
        assert len(stream.buffer._pieces) == 1  # the text that the connection does not take
        stream.end()
        found = texts(await client.chunks())
        assert len(found) < len(sent)
        assert "".join(found) == "".join(sent)

    on_fed_server(scenario, ServerSettings(send_buffer_bytes=4096))


def test_a_client_that_hangs_up_in_the_middle_aborts_every_part() -> None:
    async def scenario(site: FedSite) -> None:
        client = await site.client()
        body = {"prompt": ["a", "b"], "stream": True}
        client.post(COMPLETIONS, json.dumps(body).encode(), "X-Request-Id: mine")
        one, two = await site.streams(2)
        one.text("a")
        two.text("b")
        await client.head()
        client.writer.transport.abort()
        while not site.engine.aborted:
            one.text("c")
            two.text("d")
            await asyncio.sleep(0)
        await site.until(lambda: len(site.engine.aborted) == 2)
        await site.until(lambda: not site.app.state.context.open_requests)
        one.end("abort")
        two.end("abort")

    on_fed_server(scenario)


@pytest.mark.parametrize("has_begun", [False, True])
def test_an_error_is_a_status_before_the_first_content_and_an_event_after_it(
    has_begun: bool,
) -> None:
    async def scenario(site: FedSite) -> None:
        client = await site.client()
        client.post(COMPLETIONS, TEXT)
        (stream,) = await site.streams()
        if has_begun:
            stream.text("a", "b")
        stream.end("error", "the device is lost")
        head = await client.head()
        assert head.startswith(b"HTTP/1.1 200 " if has_begun else b"HTTP/1.1 500 ")
        if has_begun:
            first, *_, last = await client.chunks()
            assert json.loads(first[6:])["choices"][0]["text"] == "a"
            assert json.loads(last[6:])["error"]["code"] == "engine_failed"

    on_fed_server(scenario)


def test_a_part_that_is_refused_ends_the_response_with_an_event() -> None:
    async def scenario(site: FedSite) -> None:
        client = await site.client()
        client.post(COMPLETIONS, json.dumps({"prompt": ["a", "b"], "stream": True}).encode())
        one, two = await site.streams(2)
        one.text("a")
        await client.head()
        two.buffer.refuse(EngineFailed("the device is lost"))
        for _ in range(20):  # nothing of it may follow the end of the body
            one.text("b")
            await asyncio.sleep(0)
        *_, last = await client.chunks()
        assert json.loads(last[6:])["error"]["code"] == "engine_failed"
        assert len(site.engine.aborted) == 1
        client.post(COMPLETIONS, TEXT)
        (stream,) = await site.streams()
        stream.text("c")
        stream.end()
        assert (await client.head()).startswith(b"HTTP/1.1 200")
        assert texts(await client.chunks()) == ["c"]

    on_fed_server(scenario)


@pytest.mark.parametrize(
    "broken", [(event_stream, "quoted"), (completions.CompletionWriter, "delta")]
)
def test_an_error_of_one_writer_ends_its_own_response_only(
    broken: tuple[Any, str], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(site: FedSite) -> None:
        clients = [await site.client() for _ in range(2)]
        for client, path in zip(clients, (COMPLETIONS, CHAT), strict=True):
            body = {**BODIES[path], "return_token_ids": broken[1] == "delta", "stream": True}
            client.post(path, json.dumps(body).encode())
        streams = await site.streams(2)
        good, bad = sorted(streams, key=lambda one: one.generation.request_id)  # chatcmpl, cmpl
        for stream in (bad, good):
            stream.text("a")
        for client in clients:
            await client.head()
        with patch.object(*broken, side_effect=ZeroDivisionError):
            bad.text("b")
        good.text("b")
        good.end()
        assert (await clients[1].chunks())[-1] == b"data: [DONE]\n\n"
        await site.until(lambda: len(site.engine.aborted) == 1)
        assert b"[DONE]" not in await clients[0].reader.read()

    on_fed_server(scenario)
    assert any(record.exc_info for record in caplog.records)


def test_a_long_event_is_written_on_a_thread_in_its_turn() -> None:
    async def scenario(site: FedSite) -> None:
        client = await site.client()
        body = {**BODIES[COMPLETIONS], "logprobs": 20, "stream": True}
        with references() as made:
            client.post(COMPLETIONS, json.dumps(body).encode())
            (stream,) = await site.streams()
        (reference,) = made
        deltas = RandomDeltas(random.Random(0), [stream])
        entries = tuple(deltas.scored(5) for _ in range(250))
        short, long, *rest = [
            TextDelta(0, text, (5,) * size, entries[:size])
            for text, size in (("a", 1), ("b", 250), ("c", 1), ("d", 1))
        ]
        ends = TextDelta(0, "", (), (), "length")
        expected = reference.opening([_stream(stream)])
        for delta in (short, long, rest[0].followed_by(rest[1]).followed_by(ends)):
            expected += reference.delta(0, delta)
        stream.put(short)
        await client.head()
        stream.put(long, *rest, ends)
        expected += reference.closing([stream.end()])
        assert b"".join(await client.chunks()) == expected

    on_fed_server(scenario)


def test_a_connection_serves_again_after_a_stream_also_if_requests_are_pipelined() -> None:
    async def scenario(site: FedSite) -> None:
        client = await site.client()
        for _ in range(3):
            client.post(COMPLETIONS, TEXT)
        for letter in "abc":
            (stream,) = await site.streams()
            stream.text(letter)
            assert (await client.head()).startswith(b"HTTP/1.1 200")
            stream.text(letter)
            stream.end()
            assert texts(await client.chunks()) == [letter, letter]
        client.post(COMPLETIONS, TEXT)
        (stream,) = await site.streams()
        stream.text("d")
        stream.end()
        await client.head()
        assert texts(await client.chunks()) == ["d"]

    on_fed_server(scenario)


def test_the_answer_to_http_1_0_ends_with_its_connection() -> None:
    async def scenario(site: FedSite) -> None:
        client = await site.client()
        client.post(COMPLETIONS, TEXT, version="1.0")
        (stream,) = await site.streams()
        stream.text("a")
        assert b"connection: close\r\n" in await client.head()
        stream.text("b")
        stream.end()
        assert texts(await client.chunks()) == ["a", "b"]
        assert await client.reader.read() == b""

    on_fed_server(scenario)


def test_any_other_server_gets_the_same_bytes_through_asgi() -> None:
    async def scenario(site: FedSite) -> None:
        transport = httpx.ASGITransport(site.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as http:
            body = {**BODIES[COMPLETIONS], "stream": True}
            with references() as made:
                asking = asyncio.create_task(http.post(COMPLETIONS, json=body))
                (stream,) = await site.streams()
            (reference,) = made
            expected = reference.opening([_stream(stream)])
            for delta in [TextDelta(0, text, (5,)) for text in PIECES]:
                expected += reference.delta(0, delta)
                stream.put(delta)
                await asyncio.sleep(0.001)  # it is sent before the next one comes
            output = stream.end()
            expected += reference.delta(0, stream.deltas[-1]) + reference.closing([output])
            assert (await asking).content == expected

    on_fed_server(scenario)


def test_nothing_of_a_stream_waits_for_the_garbage_collector() -> None:
    """A server searches for unreachable objects rarely; these hold whole prompts and outputs."""

    def alive() -> int:
        return sum(type(one) is event_stream.EventStream for one in gc.get_objects())

    async def scenario(site: FedSite) -> None:
        before, client = alive(), await site.client()
        client.post(COMPLETIONS, TEXT)
        (stream,) = await site.streams()
        stream.text("a")
        await client.head()
        stream.text("b")
        assert alive() == before + 1
        stream.end()
        assert texts(await client.chunks()) == ["a", "b"]
        await site.until(lambda: alive() == before)

    gc.collect()
    gc.disable()
    try:
        on_fed_server(scenario)
    finally:
        gc.enable()
