"""One request: what a real server streams, and every way in which it goes wrong."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from time import perf_counter

import httpx
import pytest

from paceline.bench.client import Target, timed
from paceline.bench.samples import Sample
from paceline.workloads.call import Call
from tests.bench.support import TARGET, call
from tests.server.support import Site, on_its_own_server, paced


async def ask(http: httpx.AsyncClient, target: Target = TARGET, one: Call | None = None) -> Sample:
    return await timed(http, target, one or call(), perf_counter(), 0.25)


def test_a_real_stream() -> None:
    async def scenario(site: Site) -> None:
        plain = await ask(site.http)
        assert plain.error == ""
        assert (plain.prompt_tokens, plain.output_tokens) == (12, 5)
        assert 1 <= len(plain.pieces_s) <= 6
        assert 0 <= plain.sent_s <= plain.pieces_s[0] <= plain.pieces_s[-1] <= plain.ended_s
        assert plain.planned_s == 0.25
        chat = await ask(site.http, replace(TARGET, endpoint="chat"))
        assert chat.error == ""
        assert chat.prompt_tokens > 12
        assert chat.output_tokens == 5

    on_its_own_server(scenario, breaks=paced)


def test_refusals_are_counted_by_their_status() -> None:
    async def scenario(site: Site) -> None:
        unknown = await ask(site.http, replace(TARGET, model="nobody"))
        assert unknown.error == "status 404"
        assert unknown.message == "the model 'nobody' does not exist; use oracle"
        long = await ask(site.http, one=call(tokens=900))
        assert long.error == "status 400"
        assert long.message.startswith("a prompt of 900 tokens leaves no room")

    on_its_own_server(scenario)


def test_nobody_is_there() -> None:
    async def alone() -> Sample:
        async with httpx.AsyncClient(base_url="http://127.0.0.1:9") as http:
            return await ask(http)

    sample = asyncio.run(alone())
    assert sample.error == "no connection"
    assert (sample.pieces_s, sample.output_tokens) == ((), 0)


def event(**content: object) -> bytes:
    return b"data: " + json.dumps(content).encode() + b"\n\n"


TEXT = event(choices=[{"index": 0, "text": "a"}])
DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("stream", "error"),
    [
        ([TEXT, DONE], ""),
        ([b": a comment\n\n", TEXT, TEXT, DONE], ""),
        ([TEXT], "cut off"),
        ([DONE], "no text"),
        ([event(choices=[{"index": 0, "text": ""}]), DONE], "no text"),
        ([TEXT, event(error={"message": "broken"}), DONE], "error in the stream"),
        ([TEXT, b"data: {nonsense\n\n", DONE], "malformed response"),
        ([TEXT, b"data: [1, 2]\n\n", DONE], "malformed response"),
        ([TEXT, event(error=None, choices=[]), TEXT, DONE], ""),
        ([TEXT, httpx.ReadTimeout("")], "timeout"),
        ([TEXT, httpx.RemoteProtocolError("")], "connection closed"),
    ],
)
def test_streams_of_other_servers(stream: list[bytes | Exception], error: str) -> None:
    """No real server of ours does this, so the bytes are made up."""

    async def content() -> AsyncIterator[bytes]:
        for part in stream:
            if isinstance(part, Exception):
                raise part
            yield part

    async def work() -> Sample:
        transport = httpx.MockTransport(lambda _: httpx.Response(200, content=content()))
        async with httpx.AsyncClient(transport=transport, base_url="http://other") as http:
            return await ask(http)

    sample = asyncio.run(work())
    assert sample.error == error
    assert sample.message == ("broken" if error == "error in the stream" else "")
    if not error:
        assert sample.output_tokens == len(sample.pieces_s) == stream.count(TEXT)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "too\\nlong"}}', "too long"),
        (b'{"error": "broken"}', "broken"),
        (b'{"error": {"message": 5}}', ""),
        (b"<html>", ""),
        (b"\xff", ""),
        (b"", ""),
    ],
)
def test_messages_of_other_servers(body: bytes, message: str) -> None:
    async def work() -> Sample:
        transport = httpx.MockTransport(lambda _: httpx.Response(502, content=body))
        async with httpx.AsyncClient(transport=transport, base_url="http://other") as http:
            return await ask(http)

    sample = asyncio.run(work())
    assert (sample.error, sample.message) == ("status 502", message)
