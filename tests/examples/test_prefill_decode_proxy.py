"""Two engines behind the proxy: one computes prompts, the other generates; either may die."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import httpx
import pytest
import uvicorn

from examples.prefill_decode_proxy import create_proxy
from tests.server.real import Running, running
from tests.wiring.support import dummy_model

pytest.importorskip("nixl_cu12")

BLOCK = 16
PROMPT = [3 + place * 7 % 50 for place in range(4 * BLOCK + 5)]
ASKED: dict[str, Any] = {
    "max_tokens": 8,
    "temperature": 0,
    "ignore_eos": True,
    "return_token_ids": True,
}
LEASE_S = 3.0


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Running]]:
    folder = dummy_model(tmp_path_factory.mktemp("dummy"))
    os.environ["UCX_NET_DEVICES"] = "lo"
    roles = "prefill", "decode"
    with ExitStack() as closing, ThreadPoolExecutor() as starting:
        begun = starting.map(lambda role: closing.enter_context(server(folder, role)), roles)
        yield dict(zip(roles, begun, strict=True))


def server(folder: Path, role: str) -> Any:
    options = json.dumps({"kv_connector_extra_config": {"lease_s": LEASE_S}})
    plain = {"load_format": "dummy", "core": "thread", "kv_transfer_config": options}
    return running(folder, role=role, **plain)


@asynccontextmanager
async def proxied(engines: dict[str, Running]) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the proxy, which is served by this event loop."""
    urls = {role: [str(engine.http.base_url)] for role, engine in engines.items()}
    app = create_proxy(urls["prefill"], urls["decode"])
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.001)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            yield client
    finally:
        server.should_exit = True
        await serving


def tokens_of(answer: httpx.Response) -> list[int]:
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["token_ids"]


def cached(answer: httpx.Response) -> int:
    return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


def alone(engine: Running, prompt: list[int]) -> list[int]:
    """What one engine generates, without anything cached."""
    asked = {**ASKED, "prompt": prompt, "cache_salt": "alone"}
    answer = engine.http.post("/v1/completions", json=asked)
    assert cached(answer) == 0
    return tokens_of(answer)


def until_free(engine: Running) -> None:
    """Wait until no block is held."""
    end = monotonic() + 30
    while "vllm:kv_cache_usage_perc{" not in (text := engine.http.get("/metrics").text) or any(
        line.startswith("vllm:kv_cache_usage_perc{") and float(line.split()[-1]) > 0
        for line in text.splitlines()
    ):
        assert monotonic() < end, "blocks are still held"


def test_the_same_tokens_as_one_engine_without_computing_full_blocks(
    engines: dict[str, Running],
) -> None:
    expected = alone(engines["decode"], PROMPT)

    async def scenario() -> None:
        async with proxied(engines) as client:
            answer = await client.post("/v1/completions", json={**ASKED, "prompt": PROMPT})
            assert tokens_of(answer) == expected
            assert cached(answer) == 4 * BLOCK
            assert "kv_transfer_params" not in answer.json()
            asked = {"messages": [{"role": "user", "content": "the cat sat on the mat " * 3}]}
            asked |= {**ASKED, "stream": True, "stream_options": {"include_usage": True}}
            streamed = await client.post("/v1/chat/completions", json=asked)
            *events, done = streamed.text.strip().split("\n\n")
            assert done == "data: [DONE]"
            usage = json.loads(events[-1].removeprefix("data: "))["usage"]
            full = (usage["prompt_tokens"] - 1) // BLOCK * BLOCK
            assert usage["prompt_tokens_details"]["cached_tokens"] == full > 0
            refused = await client.post("/v1/completions", json={**ASKED, "prompt": []})
            assert refused.status_code == 400
            malformed = await client.post("/v1/completions", json=[1])
            assert malformed.status_code == 400
            assert malformed.json()["error"]["type"] == "invalid_request_error"
            several = await client.post("/v1/completions", json={**ASKED, "prompt": [PROMPT] * 2})
            assert [one["token_ids"] for one in several.json()["choices"]] == [expected] * 2

    asyncio.run(scenario())
    for engine in engines.values():
        until_free(engine)


def test_blocks_that_no_engine_reads_are_freed(engines: dict[str, Running]) -> None:
    prefill = engines["prefill"]
    asked = {"prompt": PROMPT[1:], "max_tokens": 1, "stream": True}
    asked["kv_transfer_params"] = {"do_remote_decode": True}
    *_, last, _done = prefill.http.post("/v1/completions", json=asked).text.strip().split("\n\n")
    kept = json.loads(last.removeprefix("data: "))["kv_transfer_params"]
    assert len(kept["remote_block_ids"]) == 4
    until_free(prefill)
    answer = engines["decode"].http.post(
        "/v1/completions", json={**ASKED, "prompt": PROMPT[1:], "kv_transfer_params": kept}
    )
    assert tokens_of(answer) == alone(engines["decode"], PROMPT[1:])
    assert cached(answer) == 0


def test_requests_survive_the_prefill_engine_and_end_with_the_decode_engine(
    engines: dict[str, Running],
) -> None:
    prefill, decode = engines["prefill"], engines["decode"]
    prompts = [[3 + place * step % 50 for place in range(40)] for step in (3, 11, 13, 17, 19)]
    expected = [alone(decode, prompt) for prompt in prompts]

    async def scenario() -> None:
        async with proxied(engines) as client:
            asked = [
                asyncio.create_task(
                    client.post("/v1/completions", json={**ASKED, "prompt": prompt})
                )
                for prompt in prompts
            ]
            await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            prefill.process.kill()
            assert [tokens_of(answer) for answer in await asyncio.gather(*asked)] == expected
            after = await client.post("/v1/completions", json={**ASKED, "prompt": prompts[0]})
            assert tokens_of(after) == expected[0]
            until_free(decode)
            await cut_short(client, decode)

    asyncio.run(scenario())


async def cut_short(client: httpx.AsyncClient, decode: Running) -> None:
    """A stream whose engine is killed ends with an error, and later requests with another."""
    long = {**ASKED, "prompt": PROMPT, "max_tokens": 150, "stream": True}
    async with client.stream("POST", "/v1/completions", json=long) as stream:
        pieces = stream.aiter_text()
        first = await anext(pieces)
        decode.process.kill()
        text = first + "".join([piece async for piece in pieces])
    assert "the decode engine was lost" in text.strip().split("\n\n")[-1]
    refused = await client.post("/v1/completions", json={**ASKED, "prompt": PROMPT})
    assert refused.status_code == 503
    assert refused.json()["error"]["message"].startswith("no decode engine answers")
