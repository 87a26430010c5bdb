"""A real server on a free port, over a real engine with a model without weights."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ssl import PROTOCOL_TLS_CLIENT, SSLContext
from time import sleep
from typing import Any

import httpx
from openai import AsyncOpenAI

from paceline.core.plan import Plan
from paceline.engine.frontend.open_request import OpenRequest
from paceline.engine.streaming import StreamingEngine
from paceline.sched.scheduler import Scheduler
from paceline.server.app import create_app
from paceline.server.context import ServerContext
from paceline.server.serve import DrainingServer, draining_server
from paceline.server.settings import ServerSettings
from tests.engine.support import assert_nothing_left, components, never, tokenizer

MODEL = "oracle"
DEFAULTS = ServerSettings()
PATIENCE_S = 60.0
WITHOUT_TLS = SSLContext(PROTOCOL_TLS_CLIENT)  # each client would read all certificates again


def slow(_plan: Plan, where: str) -> bool:
    """A device whose answers take long enough for a test to do something meanwhile."""
    if where == "launch":
        sleep(0.01)
    return False


def paced(_plan: Plan, where: str) -> bool:
    """A device that never fails but takes its time, so that pieces are read one by one."""
    if where == "launch":
        sleep(0.002)
    return False


@dataclass
class Site:
    """A server that runs, and ways into it."""

    url: str
    http: httpx.AsyncClient
    openai: AsyncOpenAI
    server: DrainingServer
    context: ServerContext
    engine: StreamingEngine
    scheduler: Scheduler

    async def post(self, path: str, **body: Any) -> httpx.Response:
        return await self.http.post(path, json=body)

    async def events(self, path: str, **body: Any) -> list[Any]:
        """The events of a stream, the marker of its end left out after a look at it."""
        response = await self.post(path, stream=True, **body)
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        *events, done, rest = response.text.split("\n\n")
        assert (done, rest) == ("data: [DONE]", "")
        return [json.loads(event.removeprefix("data: ")) for event in events]

    async def until(self, reached: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not reached():
                await asyncio.sleep(0.002)

    async def until_told(self) -> None:
        """Every choice of those who are here has got a token, so that a cut leaves something."""
        open_here = self.open_here
        await self.until(
            lambda: (
                bool(open_here)
                and all(
                    choice.token_ids or one.rows.tokens.has_tokens(choice.row)
                    for one in open_here.values()
                    for choice in one.choices
                )
            )
        )

    @property
    def open_here(self) -> dict[str, OpenRequest]:
        """The open requests of the engine's front end, by id."""
        return self.engine._frontend.open

    @property
    def empty(self) -> bool:
        """Is no request open, neither in the server nor in the engine?"""
        return not self.context.open_requests and not self.open_here


@asynccontextmanager
async def served(
    settings: ServerSettings = DEFAULTS,
    breaks: Callable[[Plan, str], bool] = never,
    **engine_settings: Any,
) -> AsyncGenerator[Site]:
    """At the end every request has to be gone and every block free."""
    built = components(breaks, **engine_settings)
    engine = StreamingEngine.of(built)
    app = create_app(engine, MODEL, tokenizer(), settings)
    server = draining_server(app, "127.0.0.1", 0)
    running = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.001)
    port = server.servers[0].sockets[0].getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    limits = httpx.Limits(max_connections=None)
    plain: dict[str, Any] = {"timeout": PATIENCE_S, "verify": WITHOUT_TLS}
    try:
        async with (
            httpx.AsyncClient(base_url=url, limits=limits, **plain) as http,
            AsyncOpenAI(
                base_url=f"{url}/v1",
                api_key="none",
                max_retries=0,
                http_client=httpx.AsyncClient(**plain),
            ) as openai,
        ):
            site = Site(url, http, openai, server, app.state.context, engine, built.scheduler)
            yield site
            if engine.healthy() is None:
                await engine.resume()
            await site.until(lambda: site.empty)
    finally:
        server.should_exit = True
        await running
        await engine.shutdown()
    if engine.healthy() is None:
        assert_nothing_left(built.scheduler)


Scenario = Callable[[Site], Awaitable[None]]


def on_its_own_server(
    scenario: Scenario, settings: ServerSettings = DEFAULTS, **engine_settings: Any
) -> None:
    async def play() -> None:
        async with served(settings, **engine_settings) as site:
            await scenario(site)

    asyncio.run(play())
