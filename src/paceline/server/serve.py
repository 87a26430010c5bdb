"""Serves an application until a signal, and then lets open requests finish."""

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

FLUSH_S = 5  # for connections to send what was written
IDLE_S = 75  # to keep an idle connection; longer than load balancers, so that they close it


class DrainingServer(uvicorn.Server):
    """The first signal refuses new requests; the server exits when the open ones have finished, or
    after `drain_s`.

    A second signal ends that wait. A third one exits without flushing connections.
    """

    def __init__(
        self, config: uvicorn.Config, context: ServerContext, loop: AbstractEventLoop
    ) -> None:
        super().__init__(config)
        self._context, self._loop = context, loop
        self._draining: asyncio.Task[None] | None = None
        self._time_over = asyncio.Event()  # for the open requests
        self.failure = ""  # why the engine stopped, if that ends the server

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._loop.call_soon_threadsafe(self.begin_drain)

    def begin_drain(self) -> None:
        """Call it on the event loop."""
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
            log.warning("aborting %d requests after %.3g s", len(context.open_requests), taken_s)
            for parts in [*context.open_requests.values()]:
                for part in parts:
                    await context.engine.abort(part)
        for waiting in (hurry, leaving, up):
            waiting.cancel()
        self.should_exit = True

    async def _drained(self) -> None:
        """Return when no request is open."""
        try:
            await self._context.engine.drain()
        except EngineFailed as error:
            log.warning("no request is open: %s", error)

    async def end_with_engine(self) -> None:
        """Exit when the engine has stopped for good."""
        self.failure = await self._context.engine.gone()
        log.error("the server exits: %s", self.failure)
        self.should_exit = True


def draining_server(app: FastAPI, host: str, port: int) -> DrainingServer:
    """Create it on the event loop that serves; port 0 takes any free port."""
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
    """ConfigError if the port is in use, before a model is loaded."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        raise ConfigError(
            f"cannot listen at {host}, port {port}: {error.strerror}; choose another --port"
        ) from None


async def serve(app: FastAPI, host: str = "127.0.0.1", port: int = 8000) -> None:
    """Serve until a signal. The caller shuts the engine down.

    Raises EngineFailed if the engine has stopped for good.
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
    """Log to stderr, in lines of text or of JSON."""
    text = logging.Formatter("%(levelname)s %(name)s: %(message)s")
    lines = logging.StreamHandler(sys.stderr)
    lines.setFormatter(JsonFormatter() if as_json else text)
    logging.basicConfig(level=level, handlers=[lines])
