"""Sends a load to an OpenAI-compatible server: timed streams, with a limit on open ones."""

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace
from textwrap import shorten
from time import perf_counter
from typing import Any

import httpx

from paceline.bench.samples import PrefixCacheUse, Sample, ServerRun
from paceline.workloads.call import Call, token_ids, words

EVENT = "data: "
DONE = "[DONE]"
OK = 200
MOST_CHARACTERS = 200  # of an error message
PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
CACHE = "vllm:prefix_cache"  # the name of its counters in the metrics of a server


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go, and how their bodies are made."""

    model: str
    endpoint: str  # completions: prompts are token ids, of exact lengths; chat: they are words
    vocab_size: int
    seed: int
    ignore_eos: bool

    @property
    def path(self) -> str:
        return PATHS[self.endpoint]

    def body(self, call: Call) -> dict[str, Any]:
        common: dict[str, Any] = {
            "model": self.model,
            "max_tokens": call.output_len,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.ignore_eos:
            common["ignore_eos"] = True
        if self.endpoint == "chat":
            return common | {"messages": [{"role": "user", "content": words(call, self.seed)}]}
        return common | {"prompt": token_ids(call, self.vocab_size, self.seed)}


class Failure(Exception):
    """A failed request: the kind of the failure, and the message of the server."""

    def __init__(self, kind: str, message: str = "") -> None:
        super().__init__(kind)
        self.message = message


class Reading:
    """The state of one stream."""

    def __init__(self, call: Call) -> None:
        self.pieces: list[float] = []
        self.prompt_tokens, self.output_tokens = call.input_len, 0
        self.whole = False

    def take(self, line: str) -> None:
        if not line.startswith(EVENT):
            return
        if line == EVENT + DONE:
            self.whole = True
            return
        event = json.loads(line.removeprefix(EVENT))
        if event.get("error"):
            raise Failure("error in the stream", message_of(event))
        if usage := event.get("usage"):
            self.prompt_tokens = usage["prompt_tokens"]
            self.output_tokens = usage["completion_tokens"]
        if any(has_text(choice) for choice in event.get("choices", ())):
            self.pieces.append(perf_counter())

    def check(self) -> None:
        if not self.whole:
            raise Failure("cut off")
        if not self.pieces:
            raise Failure("no text")
        # Without a usage, each piece counts as one token.
        self.output_tokens = self.output_tokens or len(self.pieces)


def message_of(body: Any) -> str:
    """The message of an error, shortened to one line; empty if there is none."""
    match body:
        case {"error": {"message": str(message)}} | {"error": str(message)}:
            return shorten(message, MOST_CHARACTERS)
        case _:
            return ""


def parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return None


def has_text(choice: dict[str, Any]) -> bool:
    delta: dict[str, Any] = choice.get("delta") or {}
    return bool(choice.get("text") or delta.get("content"))


async def timed(
    http: httpx.AsyncClient, target: Target, call: Call, begun: float, planned_s: float
) -> Sample:
    """Send a request and read its stream; times count from `begun`."""
    body = json.dumps(target.body(call)).encode()
    headers = {"Content-Type": "application/json"}
    reading, error, message = Reading(call), "", ""
    sent = perf_counter()
    try:
        async with http.stream("POST", target.path, content=body, headers=headers) as response:
            if response.status_code != OK:
                said = message_of(parsed(await response.aread()))
                raise Failure(f"status {response.status_code}", said)
            async for line in response.aiter_lines():
                reading.take(line)
        reading.check()
    except Failure as failure:
        error, message = str(failure), failure.message
    except httpx.TimeoutException:
        error = "timeout"
    except httpx.ConnectError:
        error = "no connection"
    except httpx.HTTPError:
        error = "connection closed"
    except (ValueError, KeyError, TypeError, AttributeError):
        error = "malformed response"
    return Sample(
        planned_s,
        sent - begun,
        tuple(at - begun for at in reading.pieces),
        perf_counter() - begun,
        reading.prompt_tokens,
        reading.output_tokens,
        error,
        message,
    )


@dataclass(frozen=True, slots=True)
class Load:
    """The calls; the first `warmup` of them are also sent before the measurement, one by one."""

    calls: Sequence[Call]
    max_concurrency: int = 0  # 0: no limit
    warmup: int = 0
    timeout_s: float = 600.0  # without a byte from the server


def client(url: str, key: str | None, timeout_s: float) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=url,
        headers={"Authorization": f"Bearer {key}"} if key else {},
        timeout=timeout_s,
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
    )


async def run(
    http: httpx.AsyncClient,
    target: Target,
    load: Load,
    report: Callable[[int, int], None] = lambda _done, _failed: None,
) -> ServerRun:
    """Send the calls, each at its time.

    `report` gets the number of finished calls and how many of them failed. When the run is
    cancelled, it has the samples of the calls that had finished.
    """
    # Other prompts, so that the measured ones do not find their prefixes in the cache.
    others = replace(target, seed=target.seed + 1)
    for call in load.calls[: load.warmup]:
        await timed(http, others, call, perf_counter(), 0.0)
    before = await prefix_cache_use(http)
    samples = await measured(http, target, load, report)
    after = await prefix_cache_use(http)
    return ServerRun(samples, after - before if before and after else None)


async def measured(
    http: httpx.AsyncClient, target: Target, load: Load, report: Callable[[int, int], None]
) -> list[Sample]:
    """The samples of the calls that finished."""
    gate: AbstractAsyncContextManager[Any] = (
        asyncio.Semaphore(load.max_concurrency) if load.max_concurrency else nullcontext()
    )
    ended = failed = 0
    begun = perf_counter()

    async def one(call: Call) -> Sample:
        nonlocal ended, failed
        await asyncio.sleep(begun + call.at_s - perf_counter())
        async with gate:
            sample = await timed(http, target, call, begun, call.at_s)
        ended += 1
        failed += bool(sample.error)
        report(ended, failed)
        return sample

    tasks = [asyncio.create_task(one(call)) for call in load.calls]
    try:
        return await asyncio.gather(*tasks)
    except asyncio.CancelledError:
        await asyncio.gather(*tasks, return_exceptions=True)
        return [task.result() for task in tasks if not task.cancelled()]


async def prefix_cache_use(http: httpx.AsyncClient) -> PrefixCacheUse | None:
    """The counters of a server since it started, over all of its engines; None: it has none."""
    try:
        response = await http.get("/metrics")
    except httpx.HTTPError:
        return None
    if response.status_code != OK:
        return None
    queries = counter(response.text, f"{CACHE}_queries_total")
    hits = counter(response.text, f"{CACHE}_hits_total")
    return None if queries is None or hits is None else PrefixCacheUse(queries, hits)


def counter(metrics: str, name: str) -> int | None:
    """The sum of a counter over its labels, in the text of Prometheus."""
    lines = [line for line in metrics.splitlines() if re.match(rf"{name}[ {{]", line)]
    try:
        values = [float(line.rpartition("}")[2].split()[0 if "}" in line else 1]) for line in lines]
    except (ValueError, IndexError):
        return None
    return int(sum(values)) if values else None
