"""Sends a load to a server: each call at its time, with a limit on open requests."""

import asyncio
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import httpx

from paceline.bench.client import OK, Target, timed
from paceline.bench.samples import PrefixCacheUse, Sample, ServerRun
from paceline.workloads.call import Call

CACHE = "vllm:prefix_cache"  # the name of its counters in the metrics of a server


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
