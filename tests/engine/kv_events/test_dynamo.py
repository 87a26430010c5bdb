"""NVIDIA Dynamo's selection service as a consumer."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from socket import socket
from time import monotonic
from typing import Any

import pytest

from paceline.core.request import Request
from paceline.engine.loop.engine import Engine
from paceline.engine.loop.messages import Question
from tests.engine.kv_events.support import Endpoints, build

dynamo: Any = import_module("dynamo.llm")

PATIENCE_S, SIZE = 20.0, 4


def free_port() -> int:
    with socket() as one:
        one.bind(("", 0))
        return one.getsockname()[1]


class Worker:
    """An engine without weights, as Dynamo knows it."""

    def __init__(self, number: int, encoding: str) -> None:
        self.number, self.ports = number, (free_port(), free_port())
        at = Endpoints(*(f"tcp://*:{one}" for one in self.ports))
        self.events = at.fields(encoding=encoding)
        self.engine = self.start()

    def start(self) -> Engine:
        return build("", self.events, num_blocks=96).engine()

    def run(self, prompt: list[int]) -> None:
        made = Request(f"r{monotonic()}", prompt, max_tokens=1)
        self.engine.submit(made)
        while not (self.engine.idle and self.engine.resting):
            self.engine.turn()

    def record(self) -> dict[str, Any]:
        live, replay = (f"tcp://127.0.0.1:{one}" for one in self.ports)
        return {
            "worker_id": self.number,
            "model_name": "m",
            "endpoint": f"http://127.0.0.1/{self.number}",
            "kv_events_endpoints": {0: live},
            "replay_endpoint": replay,
            "block_size": SIZE,
            "max_num_batched_tokens": 48,
            "total_kv_blocks": 96,
        }


@asynccontextmanager
async def serving(*workers: Worker) -> AsyncIterator["Router"]:
    service = dynamo.SelectionService()
    try:
        for worker in workers:
            await service.upsert_worker(worker.record())
        yield Router(service, workers)
    finally:
        service.shutdown()
        for worker in workers:
            worker.engine.close()


class Router:
    def __init__(self, service: Any, workers: tuple[Worker, ...]) -> None:
        self._service, self._workers = service, workers

    async def until_cached(self, prompt: list[int], *blocks: int) -> None:
        """Wait until Dynamo knows how many blocks of a prompt each worker has.

        It sees only with the next event that it has missed earlier ones, so the workers go on."""
        give_up, other = monotonic() + PATIENCE_S, 0
        while (cached := await self.cached(prompt)) != list(blocks):
            assert monotonic() < give_up, cached
            other = (other + 1) % 300
            for worker in self._workers:
                worker.run([*range(other, other + 2 * SIZE)][::-1])
            await asyncio.sleep(0.02)

    async def cached(self, prompt: list[int]) -> list[int]:
        found = await self._service.overlap_scores({"model_name": "m", "token_ids": prompt})
        by_worker = {one["worker_id"]: one["device_blocks"] for one in found["workers"]}
        return [by_worker[worker.number] for worker in self._workers]

    async def chosen(self, prompt: list[int]) -> int:
        found = await self._service.select({"model_name": "m", "token_ids": prompt})
        return found["worker_id"]


@pytest.mark.parametrize("encoding", ["array", "map"])
def test_requests_are_sent_where_their_prefix_is(encoding: str) -> None:
    """Also if it was stored before the router subscribed, and not any more once it is gone."""

    async def run() -> None:
        one, two = Worker(1, encoding), Worker(2, encoding)
        ours, theirs = list(range(40)), list(range(100, 140))
        one.run(ours)
        two.run(theirs)
        async with serving(one, two) as router:
            await router.until_cached(ours, 10, 0)
            await router.until_cached(theirs, 0, 10)
            assert await router.cached(ours[:20] + theirs) == [5, 0]
            for _ in range(3):
                assert await router.chosen([*ours, 7]) == 1
                assert await router.chosen([*theirs, 7]) == 2
            assert one.engine.answer(Question("reset_prefix_cache"))
            await router.until_cached(ours, 0, 0)
            assert await router.cached(theirs) == [0, 10]

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_worker_that_was_restarted_has_forgotten_everything() -> None:
    async def run() -> None:
        worker, prompt, other = Worker(1, "array"), list(range(40)), list(range(100, 140))
        worker.run(prompt)
        async with serving(worker) as router:
            await router.until_cached(prompt, 10)
            worker.engine.close()
            worker.engine = worker.start()
            worker.run(other)
            await router.until_cached(other, 10)
            assert await router.cached(prompt) == [0]

    asyncio.run(asyncio.wait_for(run(), 60))
