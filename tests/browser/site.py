"""A server with its page, over a scheduler in a process of its own and a model without weights."""

import asyncio
import os
import signal
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from threading import Event, Thread
from time import monotonic, sleep
from typing import Any

import httpx

from paceline.core.plan import Plan
from paceline.engine.components import EngineComponents
from paceline.engine.frontend.frontend import Frontend
from paceline.engine.settings import CoreSettings
from paceline.engine.streaming import StreamingEngine
from paceline.engine.transport.process import ProcessCore
from paceline.engine.transport.restart import RestartingCore
from paceline.server.app import create_app
from paceline.server.serve import DrainingServer, draining_server
from paceline.server.settings import ServerSettings
from paceline.text.chat_template import ChatTemplate
from tests.engine.support import components, tokenizer

KEY = "a key"
PATIENCE_S = 60.0
STEP_S = 0.008
# Blocks for about half of what 32 sequences need, so that requests wait for them and are preempted.
SCHEDULER = {
    "policy": "fair",
    "max_num_seqs": 32,
    "num_blocks": 360,
    "block_size": 4,
    "max_num_batched_tokens": 256,
}


def build(_model: str, **settings: Any) -> EngineComponents:
    """A device whose steps take some time."""

    def paced(_plan: Plan, where: str) -> bool:
        if where == "launch":
            sleep(STEP_S)
        return False

    return components(paced, **settings)


@dataclass
class Site:
    """A server that runs on a thread."""

    url: str
    core: RestartingCore
    engine: StreamingEngine
    server: DrainingServer
    loop: asyncio.AbstractEventLoop

    def do(self, work: Coroutine[Any, Any, Any]) -> None:
        asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE_S)

    def load(self, requests: int) -> "Future[list[int]]":
        """So many requests at once, of three tenants; some have a prompt that begins alike."""
        return asyncio.run_coroutine_threadsafe(self._load(requests), self.loop)

    async def _load(self, requests: int) -> list[int]:
        draw = Random(5)
        headers = {"Authorization": f"Bearer {KEY}"}
        limits = httpx.Limits(max_connections=None)

        async def one(client: httpx.AsyncClient) -> int:
            words = draw.choices(
                ("the", "quick", "hello", "nothing", "world"), k=draw.randint(2, 12)
            )
            body = {
                "prompt": draw.choice(("", "The quick brown fox jumps over the lazy dog. "))
                + " ".join(words),
                "max_tokens": draw.randint(24, 48),
                "ignore_eos": True,
                "user": draw.choice(("research", "chat", "batch")),
            }
            response = await client.post("/v1/completions", json=body)
            return response.status_code

        async with httpx.AsyncClient(
            base_url=self.url, headers=headers, timeout=PATIENCE_S, limits=limits
        ) as client:
            return await asyncio.gather(*(one(client) for _ in range(requests)))

    def kill_core(self) -> None:
        os.kill(self.core.pid, signal.SIGKILL)

    def stop(self) -> None:
        """As a signal does."""
        self.loop.call_soon_threadsafe(self.server.handle_exit, signal.SIGTERM, None)


@contextmanager
def site() -> Iterator[Site]:
    core = RestartingCore(
        lambda: ProcessCore(f"{__name__}:build", "oracle", dict(SCHEDULER)), CoreSettings()
    )
    core.ready()
    loop, started, found = asyncio.new_event_loop(), Event(), list[Site]()

    async def main() -> None:
        engine = StreamingEngine(
            core, Frontend(tokenizer(), ChatTemplate.of(tokenizer()), monotonic)
        )
        settings = ServerSettings(dashboard=True, api_keys=(KEY,))
        server = draining_server(
            create_app(engine, "oracle", tokenizer(), settings), "127.0.0.1", 0
        )
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.001)
        port = server.servers[0].sockets[0].getsockname()[1]
        found.append(Site(f"http://127.0.0.1:{port}", core, engine, server, loop))
        started.set()
        await serving
        await engine.shutdown()

    thread = Thread(target=lambda: loop.run_until_complete(main()))
    thread.start()
    assert started.wait(PATIENCE_S)
    try:
        yield found[0]
    finally:
        found[0].stop()
        thread.join(PATIENCE_S)
        loop.close()
