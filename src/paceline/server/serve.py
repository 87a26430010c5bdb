"""Serves an application until a signal, and then lets open requests finish."""

import asyncio
import logging
import os
import socket
import sys
from asyncio import AbstractEventLoop
from collections.abc import Callable
from contextlib import ExitStack
from errno import EACCES, EADDRINUSE
from math import ceil
from pathlib import Path
from types import FrameType
from typing import Any, cast

import uvicorn
from fastapi import FastAPI

from paceline.core.errors import ConfigError
from paceline.engine.api import EngineFailed
from paceline.server.connections import (
    Acceptor,
    ClientConnection,
    TurnWrites,
    connection_limit,
)
from paceline.server.context import ServerContext
from paceline.server.running import RunningServer, announced
from paceline.server.telemetry.request_log import JsonFormatter

log = logging.getLogger("paceline.server")

LONGEST_SOCKET_PATH = 107  # bytes that the kernel has room for
FLUSH_S = 5  # for connections to send what was written
TICKS_PER_S = 10  # of uvicorn's main loop


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
        self._acceptor: Acceptor | None = None
        self._writes = TurnWrites()
        self.failure = ""  # why the engine stopped, if that ends the server
        self.listening: Callable[[str], None] = lambda _: None  # called with the URL

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and accept a bounded number of connections."""
        await super().startup(sockets)
        listeners = [one for server in self.servers for one in server.sockets]
        for listener in listeners:  # connections inherit it; without it, the kernel buffers MiBs
            size = self._context.settings.send_buffer_bytes
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)
        most = connection_limit(self._context.settings.max_connections)
        self._acceptor = Acceptor(listeners, self._connection, self._connections, most)
        self.listening(url_of(listeners[0]))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._acceptor is not None:
            self._acceptor.close()
        await super().shutdown(sockets)

    async def on_tick(self, counter: int) -> bool:
        """Close connections whose clients have sent or read nothing for too long."""
        head_s, unread_s = self._context.settings.head_s, self._context.settings.unread_s
        period_s = min(head_s / 4, unread_s / 4, 1.0)
        if counter % max(int(period_s * TICKS_PER_S), 1) == 0:
            for connection in [*self._connections]:
                connection.check(head_s, unread_s)
        return await super().on_tick(counter)

    @property
    def _connections(self) -> set[ClientConnection]:
        return cast("set[ClientConnection]", self.server_state.connections)

    def _connection(self) -> ClientConnection:
        state = self.server_state, self.lifespan.state
        return ClientConnection(self.config, *state, writes=self._writes)

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


def draining_server(app: FastAPI, host: str, port: int, uds: str = "") -> DrainingServer:
    """Create it on the event loop that serves; port 0 takes any free port.

    With `uds`, the path of a Unix socket, it listens there and at no port.
    """
    context: ServerContext = app.state.context
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        uds=uds or None,
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=FLUSH_S,
        timeout_keep_alive=ceil(context.settings.idle_s),
        http=ClientConnection,
        h11_max_incomplete_event_size=context.settings.header_bytes,
    )
    return DrainingServer(config, context, asyncio.get_running_loop())


def check_port(host: str, port: int) -> None:
    """ConfigError if the port is in use, before a model is loaded."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        # create_server appends the address, which the message has already.
        problem = (error.strerror or str(error)).partition(" (while")[0]
        flag = "--port" if error.errno in (EADDRINUSE, EACCES) else "--host"
        raise ConfigError(
            f"cannot listen at {host}, port {port}: {problem}; choose another {flag}"
        ) from None


def check_socket(path: str) -> None:
    """ConfigError if a Unix socket cannot be made there, or another server listens at it."""
    if len(os.fsencode(path)) > LONGEST_SOCKET_PATH:
        raise ConfigError(
            f"uds is {path!r}; the path of a socket has at most {LONGEST_SOCKET_PATH} bytes"
        )
    if not Path(path).parent.is_dir():
        raise ConfigError(f"uds is {path!r}, but there is no folder {Path(path).parent}")
    if not os.path.lexists(path):
        return
    if not Path(path).is_socket():
        raise ConfigError(f"uds is {path!r}, which is not a socket; choose another --uds")
    with socket.socket(socket.AF_UNIX) as probe:
        if probe.connect_ex(path) == 0:
            raise ConfigError(f"another server listens at {path}; choose another --uds")


async def serve(app: FastAPI, host: str = "127.0.0.1", port: int = 8000, uds: str = "") -> None:
    """Serve until a signal. The caller shuts the engine down.

    Raises EngineFailed if the engine has stopped for good.
    """
    server = draining_server(app, host, port, uds)
    watching = asyncio.create_task(server.end_with_engine())
    context = app.state.context
    with ExitStack() as listed:  # from when it listens until it ends
        server.listening = lambda url: listed.enter_context(
            announced(RunningServer.here(context.served_name, context.models[0], url))
        )
        try:
            await server.serve()
        finally:
            watching.cancel()
            if uds:
                Path(uds).unlink(missing_ok=True)
    if server.failure:
        raise EngineFailed(server.failure)


def url_of(listener: socket.socket) -> str:
    """Where clients reach a socket."""
    name: Any = listener.getsockname()
    if isinstance(name, str):
        return f"unix:{name}"
    host, port = name[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def log_to_stderr(level: int = logging.INFO, as_json: bool = False) -> None:
    """Log to stderr, in lines of text or of JSON."""
    text = logging.Formatter("%(levelname)s %(name)s: %(message)s")
    lines = logging.StreamHandler(sys.stderr)
    lines.setFormatter(JsonFormatter() if as_json else text)
    logging.basicConfig(level=level, handlers=[lines])
