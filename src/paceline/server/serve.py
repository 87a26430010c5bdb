"""Serves an application until it is told to end, and then lets what runs finish."""

import asyncio
import logging
import socket
import sys
from asyncio import AbstractEventLoop
from types import FrameType

import uvicorn
from fastapi import FastAPI

from paceline.core.errors import ConfigError
from paceline.engine.api import EngineFailed
from paceline.server.context import ServerContext
from paceline.server.telemetry.request_log import JsonFormatter

log = logging.getLogger("paceline.server")

FLUSH_S = 5  # for connections to take what was written
IDLE_S = 75  # that a connection is kept; longer than balancers keep theirs, who then end it


class DrainingServer(uvicorn.Server):
    """The first signal closes the door, and the server ends when nobody is left or time is up.

    With a second signal time is up; a third does not even wait for what was said to be heard.
    """

    def __init__(
        self, config: uvicorn.Config, context: ServerContext, loop: AbstractEventLoop
    ) -> None:
        super().__init__(config)
        self._context, self._loop = context, loop
        self._draining: asyncio.Task[None] | None = None
        self._time_over = asyncio.Event()  # the time of those who are here
        self.failure = ""  # of the engine, if that is what ends the server

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._loop.call_soon_threadsafe(self.begin_drain)

    def begin_drain(self) -> None:
        """To be called on the event loop."""
        if self._draining is None:
            self._draining = asyncio.create_task(self._drain())
        elif not self._time_over.is_set() and not self._draining.done():
            self._time_over.set()
        else:
            self.should_exit = self.force_exit = True

    async def _drain(self) -> None:
        context, limit_s, begin = self._context, self._context.settings.drain_s, self._loop.time()
        context.draining = True
        log.info("draining: %d requests are open", len(context.open_requests))
        hurry = self._loop.call_later(limit_s, self._time_over.set)
        leaving, up = (
            asyncio.create_task(self._drained()),
            asyncio.create_task(self._time_over.wait()),
        )
        await asyncio.wait((leaving, up), return_when=asyncio.FIRST_COMPLETED)
        if not leaving.done():
            taken_s = self._loop.time() - begin
            log.warning("%d requests are cut after %.3g s", len(context.open_requests), taken_s)
            for parts in [*context.open_requests.values()]:
                for part in parts:
                    await context.engine.abort(part)
        for waiting in (hurry, leaving, up):
            waiting.cancel()
        self.should_exit = True

    async def _drained(self) -> None:
        """When nobody is here any more."""
        try:
            await self._context.engine.drain()
        except EngineFailed as error:
            log.warning("nobody is left: %s", error)

    async def end_with_engine(self) -> None:
        """When the engine is gone for good, there is nothing to serve."""
        self.failure = await self._context.engine.gone()
        log.error("the server ends: %s", self.failure)
        self.should_exit = True


def draining_server(app: FastAPI, host: str, port: int) -> DrainingServer:
    """To be made on the event loop that serves; port 0 takes any that is free."""
    context: ServerContext = app.state.context
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=FLUSH_S,
        timeout_keep_alive=IDLE_S,
        h11_max_incomplete_event_size=context.settings.header_bytes,
    )
    return DrainingServer(config, context, asyncio.get_running_loop())


def check_port(host: str, port: int) -> None:
    """A place where others listen already is told before a model is loaded."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        raise ConfigError(f"cannot listen at {host}, port {port}: {error.strerror}") from None


async def serve(app: FastAPI, host: str = "127.0.0.1", port: int = 8000) -> None:
    """Returns when the server has ended; the engine is the caller's to shut down.

    EngineFailed if the engine is gone, so that there was nothing left to serve.
    """
    server = draining_server(app, host, port)
    watching = asyncio.create_task(server.end_with_engine())
    try:
        await server.serve()
    finally:
        watching.cancel()
    if server.failure:
        raise EngineFailed(server.failure)


def log_to_stderr(level: int = logging.INFO, as_json: bool = False) -> None:
    """What the server and its engine have to say, in lines of text or of JSON."""
    text = logging.Formatter("%(levelname)s %(name)s: %(message)s")
    lines = logging.StreamHandler(sys.stderr)
    lines.setFormatter(JsonFormatter() if as_json else text)
    logging.basicConfig(level=level, handlers=[lines])
