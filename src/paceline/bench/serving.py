"""Sends a load to a server: each call at its time, with a limit on open requests."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import httpx

from paceline.bench.client import Target, timed
from paceline.bench.samples import Sample
from paceline.workloads.call import Call


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
) -> list[Sample]:
    """One sample per call, in the order of the calls.

    `report` gets the number of finished calls and how many of them failed. When the run is
    cancelled, it returns the samples of the calls that had finished.
    """
    # Other prompts, so that the measured ones do not find their prefixes in the cache.
    others = replace(target, seed=target.seed + 1)
    for call in load.calls[: load.warmup]:
        await timed(http, others, call, perf_counter(), 0.0)
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
