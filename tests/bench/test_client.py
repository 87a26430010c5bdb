"""Requests and loads on a real server: what streams, what is timed, and every way to fail."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from time import perf_counter

import httpx
import pytest

from paceline.bench.client import Load, Target, counter, prefix_cache_use, run, timed
from paceline.bench.samples import PrefixCacheUse, Sample
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


def test_samples_come_in_the_order_of_the_calls() -> None:
    async def scenario(site: Site) -> None:
        calls = [call(number, 8 + number, 9 - number, 0.05 * number) for number in range(4)]
        heard: list[tuple[int, int]] = []
        done = await run(site.http, TARGET, Load(calls), lambda *counts: heard.append(counts))
        samples = done.samples
        assert [sample.error for sample in samples] == [""] * 4
        assert [sample.prompt_tokens for sample in samples] == [8, 9, 10, 11]
        assert [sample.output_tokens for sample in samples] == [9, 8, 7, 6]
        assert [sample.planned_s for sample in samples] == [one.at_s for one in calls]
        assert all(sample.sent_s >= sample.planned_s for sample in samples)
        assert heard == [(1, 0), (2, 0), (3, 0), (4, 0)]

    on_its_own_server(scenario, breaks=paced)


def test_so_many_at_once_and_no_more() -> None:
    async def scenario(site: Site) -> None:
        most = 0

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, len(site.context.open_requests))
                await asyncio.sleep(0.001)

        watching = asyncio.create_task(watch())
        calls = [call(number) for number in range(8)]
        samples = (await run(site.http, TARGET, Load(calls, max_concurrency=2))).samples
        watching.cancel()
        assert all(not sample.error for sample in samples)
        assert most == 2

    on_its_own_server(scenario, breaks=paced)


def test_warm_ups_are_not_counted_and_leave_no_prefix_behind() -> None:
    async def scenario(site: Site) -> None:
        calls = [call(number, tokens=40) for number in range(3)]
        done = await run(site.http, TARGET, Load(calls, warmup=2))
        assert len(done.samples) == 3
        assert done.cache == PrefixCacheUse(3 * 40, 0), "without the warm-ups"
        assert site.scheduler.stats.prefix_queries == 5 * 40
        assert site.scheduler.stats.prefix_hits == 0
        again = await run(site.http, TARGET, Load(calls))
        assert again.cache is not None
        assert again.cache.queries == 3 * 40
        assert again.cache.hit_rate > 0.8, "the same prompts once more"

    on_its_own_server(scenario)


def test_a_run_that_is_cancelled_returns_what_has_finished() -> None:
    async def scenario(site: Site) -> None:
        calls = [call(0), call(1), call(2, at_s=60.0)]
        ended = asyncio.Event()
        running = asyncio.create_task(
            run(site.http, TARGET, Load(calls), lambda done, _: ended.set() if done == 2 else None)
        )
        await ended.wait()
        running.cancel()
        samples = (await running).samples
        assert [sample.error for sample in samples] == ["", ""]

    on_its_own_server(scenario)


def test_counters_are_sums_over_the_engines_of_a_server() -> None:
    text = (
        "# TYPE x_total counter\n"
        'x_total{engine="0",model_name="a } b"} 3.0\n'
        'x_total{engine="1"} 4e1 1700000000\n'
        "x_total_more 9.0\nplain 5\nodd five\n"
    )
    assert counter(text, "x_total") == 43
    assert counter(text, "plain") == 5
    assert counter(text, "absent") is counter(text, "odd") is None


def test_a_server_without_such_counters_says_nothing_of_its_cache() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.host == "lost":
            raise httpx.ConnectError("no way")
        return httpx.Response(404 if request.url.host == "absent" else 200, text="up 1\n")

    async def asked(host: str) -> PrefixCacheUse | None:
        transport = httpx.MockTransport(answer)
        async with httpx.AsyncClient(base_url=f"http://{host}", transport=transport) as http:
            return await prefix_cache_use(http)

    assert [asyncio.run(asked(host)) for host in ("lost", "absent", "other")] == [None] * 3
