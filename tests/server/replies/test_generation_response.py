"""Clients that hang up, read slowly or come in crowds, and engines that fail."""

import asyncio
import json
import random
import socket
import threading
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import httpx
import pytest

from paceline.core.plan import Plan
from paceline.engine.api import GenerationRequest, SamplingParams, TokenizedPrompt
from paceline.server.routes.completions import CompletionWriter
from paceline.server.scoreboard import RequestRate
from paceline.server.settings import ServerSettings
from tests.engine.support import expected, expected_text
from tests.server.conftest import Play
from tests.server.support import DEFAULTS, Site, on_its_own_server, paced

PATH = "/v1/completions"
LONG = {"prompt": "the", "max_tokens": 200, "ignore_eos": True}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("prompt", ["the", ["the", "quick", "fox"]])
def test_a_client_that_hangs_up_takes_its_request_with_it(stream: bool, prompt: Any) -> None:
    async def scenario(site: Site) -> None:
        body = {**LONG, "prompt": prompt, "stream": stream}
        asking = asyncio.create_task(site.http.post(PATH, json=body))
        await site.until(lambda: len(site.open_here) > 0)
        if stream:
            await asyncio.sleep(0.02)
        asking.cancel()
        await site.until(lambda: site.empty)
        assert await site.engine.snapshot()

    on_its_own_server(scenario, breaks=paced)


def test_a_client_that_hangs_up_while_it_waits_leaves_the_queue() -> None:
    async def scenario(site: Site) -> None:
        await site.engine.pause("all")
        asking = [asyncio.create_task(site.http.post(PATH, json=LONG)) for _ in range(5)]
        await site.until(lambda: len(site.context.open_requests) == 5)
        for one in asking[:3]:
            one.cancel()
        await site.until(lambda: len(site.context.open_requests) == 2)
        await site.engine.resume()
        for one in asking[3:]:
            assert (await one).status_code == 200

    on_its_own_server(scenario)


def test_slow_readers_hold_nobody_back_and_are_dropped_in_the_end() -> None:
    async def scenario(site: Site) -> None:
        listening = site.server.servers[0].sockets[0]
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2048)
        wire = socket.socket()
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        wire.connect(("127.0.0.1", httpx.URL(site.url).port))
        reader, writer = await asyncio.open_connection(sock=wire, limit=64)
        body = {"prompt": "the", "max_tokens": 240, "ignore_eos": True, "stream": True}
        body |= {"n": 7, "stream_options": {"include_usage": True}}
        text = json.dumps(body)
        writer.write(
            f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            f"X-Request-Id: slow\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode()
        )
        await reader.readline()
        writer.transport.pause_reading()
        response = await site.post(PATH, prompt="the quick", max_tokens=50, ignore_eos=True)
        assert response.json()["usage"]["completion_tokens"] == 50
        await site.until(lambda: not site.open_here)
        assert "slow" in site.context.open_requests
        await site.until(lambda: not site.context.open_requests)
        writer.transport.abort()

    settings = ServerSettings(unread_s=5.0)  # others are answered meanwhile, on a busy machine too
    on_its_own_server(scenario, settings, breaks=paced, num_blocks=600)


def test_a_full_queue_says_when_to_come_again() -> None:
    async def scenario(site: Site) -> None:
        await site.engine.pause("all")
        asking = [asyncio.create_task(site.http.post(PATH, json=LONG)) for _ in range(12)]
        done, waiting = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
        while len(done) < 8:
            more, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            done |= more
        for one in done:
            response = one.result()
            assert response.status_code == 429
            assert response.json()["error"]["code"] == "queue_full"
            assert response.json()["error"]["type"] == "rate_limit_error"
            assert int(response.headers["retry-after"]) >= 1
        await site.engine.resume()
        for one in waiting:
            assert (await one).status_code == 200

    on_its_own_server(scenario, max_num_queued_reqs=4)


def test_room_in_the_queue_is_looked_for_before_any_work() -> None:
    async def scenario(site: Site) -> None:
        read: list[GenerationRequest] = []
        tokenize = site.engine.tokenized

        async def noted(one: GenerationRequest, images: Sequence[Any]) -> TokenizedPrompt:
            read.append(one)
            return await tokenize(one, images)

        with patch.object(site.engine, "tokenized", noted):
            fits, over = [
                await site.post(PATH, prompt=["the"] * count, max_tokens=1) for count in (4, 9)
            ]
        assert (fits.status_code, over.status_code, len(read)) == (200, 429, 4)
        problem = "9 more would exceed max_num_seqs (4) and max_num_queued_reqs (4)"
        assert problem in over.json()["error"]["message"]

    on_its_own_server(scenario, max_num_seqs=4, max_num_queued_reqs=4)


def test_its_own_timeout_goes_before_the_servers() -> None:
    async def scenario(site: Site) -> None:
        timeouts: list[float | None] = []
        generate = site.engine.generate

        def noted(one: GenerationRequest) -> Any:
            timeouts.append(one.timeout)
            return generate(one)

        with patch.object(site.engine, "generate", noted):
            for own in ({}, {"timeout": 40.0}):
                await site.post(PATH, prompt="the", max_tokens=1, **own)
        assert timeouts == [60.0, 40.0]

    on_its_own_server(scenario, ServerSettings(timeout_s=60.0))


def test_a_request_of_many_parts_is_aborted_as_a_whole_while_it_starts() -> None:
    async def scenario(site: Site) -> None:
        started: list[str] = []
        generate = site.engine.generate

        def noted(one: GenerationRequest) -> Any:
            started.append(one.request_id)
            if len(started) == 3:
                site.context.open_requests.aborted_early.add("mine")
            return generate(one)

        with patch.object(site.engine, "generate", noted):
            headers, body = {"X-Request-Id": "mine"}, {**LONG, "prompt": ["the"] * 9}
            answer = await site.http.post(PATH, json=body, headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "aborted")
        assert len(started) == 3

    on_its_own_server(scenario, breaks=paced)


@pytest.mark.parametrize("stream", [False, True])
def test_a_long_answer_is_written_on_a_thread(on: Play, stream: bool) -> None:
    async def scenario(site: Site) -> None:
        here, seen = threading.get_ident(), set[bool]()
        write = CompletionWriter._choice

        def noted(writer: CompletionWriter, *given: Any) -> Any:
            seen.add(threading.get_ident() == here)
            return write(writer, *given)

        with patch.object(CompletionWriter, "_choice", noted):
            for length, is_here in ((20, True), (200, False)):
                scored = {"echo": True, "logprobs": 20, "max_tokens": 1, "stream": stream}
                await site.post(PATH, prompt=[5] * length, **scored)
                assert seen == {is_here}
                seen.clear()

    on(scenario)


def test_the_pace_of_late_says_when_to_come_again() -> None:
    async def scenario(site: Site) -> None:
        now = [100.0]
        site.context.board.rate = RequestRate(lambda: now[0])
        assert (await site.post(PATH, prompt="the", max_tokens=1)).status_code == 200
        now[0] += 20.0  # since the only end there was
        await site.engine.pause("all")
        waiting = asyncio.create_task(site.http.post(PATH, json=LONG))
        await site.until(lambda: bool(site.open_here))
        refused = await site.http.post(PATH, json=LONG)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "20")
        await site.engine.resume()
        assert (await waiting).status_code == 200

    on_its_own_server(scenario, max_num_queued_reqs=1)


def test_a_device_that_fails_is_told_of_by_status_or_by_an_event() -> None:
    failing = {"now": False}

    def breaks(plan: Plan, where: str) -> bool:
        paced(plan, where)
        return failing["now"] and where == "wait"

    async def scenario(site: Site) -> None:
        failing["now"] = True
        for stream in (False, True):
            response = await site.post(PATH, **LONG, stream=stream)
            assert response.status_code == 500
            assert response.json()["error"]["type"] == "server_error"
            assert response.json()["error"]["code"] == "engine_failed"
        failing["now"] = False
        request = site.http.build_request("POST", PATH, json={**LONG, "stream": True})
        response = await site.http.send(request, stream=True)
        lines = response.aiter_lines()
        first = await anext(lines)
        assert json.loads(first.removeprefix("data: "))["choices"]
        failing["now"] = True
        *_, last = [line async for line in lines if line]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "engine_failed"
        failing["now"] = False
        assert (await site.post(PATH, prompt="the", max_tokens=2)).status_code == 200

    on_its_own_server(scenario, breaks=breaks)


def test_an_engine_that_stopped_is_unhealthy() -> None:
    def breaks(plan: Plan, where: str) -> bool:
        return where == "wait"

    async def scenario(site: Site) -> None:
        assert (await site.post(PATH, **LONG)).status_code == 500
        await site.until(lambda: site.engine.healthy() is not None)
        for response in [
            await site.http.get("/health"),
            await site.http.get("/ready"),
            await site.post(PATH, **LONG),
            await site.post(PATH, **LONG, stream=True),
        ]:
            assert response.status_code == 503
            assert response.json()["error"]["message"]
            assert "retry-after" in response.headers

    on_its_own_server(scenario, breaks=breaks, on_failure="stop")


CLIENTS = 200


async def opened(site: Site, number: int) -> str:
    """One of a crowd: reads all of a stream, or hangs up in the middle, or floods."""
    chance = random.Random(number)
    most = chance.randrange(1, 24)
    body = {"prompt": f"the {number}", "max_tokens": most, "seed": number, "stream": True}
    wanted = expected_text(*expected(f"the {number}", SamplingParams(max_tokens=most, seed=number)))
    kind = chance.choice(["whole", "stream", "stream", "hang up", "hang up at once"])
    if kind == "whole":
        response = await site.post(PATH, **{**body, "stream": False})
        if response.status_code == 429:
            return "refused"
        assert response.json()["choices"][0]["text"] == wanted
        return "finished"
    if kind == "hang up at once":
        asking = asyncio.create_task(site.post(PATH, **body))
        await asyncio.sleep(chance.random() * 0.1)
        asking.cancel()
        return "hung up"
    async with site.http.stream("POST", PATH, json=body) as response:
        if response.status_code == 429:
            return "refused"
        assert response.status_code == 200
        text = ""
        async for line in response.aiter_lines():
            if kind == "hang up" and len(text) > 10:
                return "hung up"
            if line.startswith("data: {"):
                text += json.loads(line[6:])["choices"][0]["text"]
        assert text == wanted
    return "finished"


def test_two_hundred_clients_at_once_lose_and_leak_nothing() -> None:
    async def scenario(site: Site) -> None:
        ends = await asyncio.gather(*(opened(site, number) for number in range(CLIENTS)))
        assert len(ends) == CLIENTS
        assert ends.count("finished") > 40
        assert ends.count("hung up") > 20
        await site.until(lambda: site.empty)
        assert (await site.http.get("/load")).json() == {"server_load": 0}
        assert site.engine.healthy() is None

    on_its_own_server(scenario, DEFAULTS, max_num_queued_reqs=150)
