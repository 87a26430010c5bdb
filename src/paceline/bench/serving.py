"""Puts a load on a server: each call at its time, so many at once at most."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import httpx

from paceline.bench.client import Target, timed
from paceline.bench.samples import Sample
from paceline.core.errors import PacelineError
from paceline.workloads.call import Call

FINE = 200


class ServerMissing(PacelineError):
    """The server to be measured is not there."""


@dataclass(frozen=True, slots=True)
class Load:
    """What to send; the first `warmup` calls are sent again before, one by one, and not counted."""

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


async def first_model(http: httpx.AsyncClient) -> str:
    """The model that a server names first."""
    try:
        response = await http.get("/v1/models")
    except httpx.HTTPError as error:
        raise ServerMissing(f"{http.base_url} does not answer: {error}") from None
    models = f"{str(http.base_url).rstrip('/')}/v1/models"
    if response.status_code != FINE:
        raise ServerMissing(f"{models} answers with {response.status_code}")
    try:
        return response.json()["data"][0]["id"]
    except (ValueError, LookupError, TypeError):
        raise ServerMissing(f"{models} names no model; give --model") from None


async def run(
    http: httpx.AsyncClient,
    target: Target,
    load: Load,
    told: Callable[[int], None] = lambda _: None,
) -> list[Sample]:
    """One sample per call, in the order of the calls; `told` hears how many have ended."""
    # Prompts of their own, or the measured ones would find their prefixes in the cache.
    aside = replace(target, seed=target.seed + 1)
    for call in load.calls[: load.warmup]:
        await timed(http, aside, call, perf_counter(), 0.0)
    gate: AbstractAsyncContextManager[Any] = (
        asyncio.Semaphore(load.max_concurrency) if load.max_concurrency else nullcontext()
    )
    ended = 0
    begun = perf_counter()

    async def one(call: Call) -> Sample:
        nonlocal ended
        await asyncio.sleep(begun + call.at_s - perf_counter())
        async with gate:
            sample = await timed(http, target, call, begun, call.at_s)
        ended += 1
        told(ended)
        return sample

    return await asyncio.gather(*(one(call) for call in load.calls))
