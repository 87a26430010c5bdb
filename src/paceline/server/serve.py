"""Serves an application until a signal, and then lets open requests finish."""

import asyncio
import logging
import socket
import sys
from asyncio import AbstractEventLoop
from collections.abc import Callable
from contextlib import ExitStack
from math import ceil
from pathlib import Path
from signal import SIGINT
from types import FrameType
from typing import cast

import uvicorn
from fastapi import FastAPI

from paceline.engine.api import EngineFailed
from paceline.server.connections import Acceptor, ClientConnection, TurnWrites, connection_limit
from paceline.server.context import ServerContext
from paceline.server.listen import RunningServer, announced, url_of
from paceline.server.telemetry.request_log import JsonFormatter

log = logging.getLogger("paceline.server")

FLUSH_S = 5  # for connections to send what was written
TICKS_PER_S = 10  # of uvicorn's main loop


class DrainingServer(uvicorn.Server):
    """The first signal refuses new requests; the server exits when the open ones have finished, or
    after `drain_s`.

    A second signal ends that wait. A third one exits without flushing connections. If several
    processes serve, the owner of the core has them all drain. A signal to one of them is for this
    one alone: it stops accepting connections, which the others do meanwhile.
    """

    def __init__(
        self, config: uvicorn.Config, context: ServerContext, loop: AbstractEventLoop
    ) -> None:
        super().__init__(config)
        self._context, self._loop = context, loop
        self._signals = 0  # that this process got
        self._noted = 0  # signals that had an effect, of this process or of the owner of the core
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
        self._acceptor = Acceptor(
            listeners, self._connection, self._connections, most, self._context.board
        )
        self.listening(url_of(listeners[0]))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._stop_accepting()
        await super().shutdown(sockets)

    async def on_tick(self, counter: int) -> bool:
        """Close connections whose clients have sent or read nothing for too long."""
        head_s, unread_s = self._context.settings.head_s, self._context.settings.unread_s
        period_s = min(head_s / 4, unread_s / 4, 1.0)
        if counter % max(int(period_s * TICKS_PER_S), 1) == 0:
            for connection in [*self._connections]:
                connection.check(head_s, unread_s)
        if self._acceptor is not None:
            self._acceptor.publish()
        self._context.board.set_failure(self._context.engine.last_failure_s)
        return await super().on_tick(counter)

    def _stop_accepting(self) -> None:
        if self._acceptor is not None:
            self._acceptor.close()
            self._acceptor = None

    @property
    def _connections(self) -> set[ClientConnection]:
        return cast("set[ClientConnection]", self.server_state.connections)

    def _connection(self) -> ClientConnection:
        state = self.server_state, self.lifespan.state
        return ClientConnection(self.config, *state, writes=self._writes)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not self._context.board.is_shared or sig != SIGINT:  # a terminal sends it to all
            self._signals += 1
            self._loop.call_soon_threadsafe(self._signalled, self._signals)

    def _signalled(self, signals: int) -> None:
        if self._context.board.is_shared:
            self._stop_accepting()
        self.begin_drain(signals)

    def begin_drain(self, signals: int) -> None:
        """React to a signal, given how many there were so far. Call it on the event loop.

        Service managers send a signal to every process, so this process and the owner of the core
        may both get it; it counts once.
        """
        if signals <= self._noted:
            return
        self._noted = signals
        if self._draining is None:
            self._context.draining = True
            self._draining = asyncio.create_task(self._drain())
        elif not self._time_over.is_set() and not self._draining.done():
            self._time_over.set()
        else:
            self.should_exit = self.force_exit = True

    async def _drain(self) -> None:
        context, limit_s, begin = self._context, self._context.settings.drain_s, self._loop.time()
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


async def serve(app: FastAPI, host: str = "127.0.0.1", port: int = 8000, uds: str = "") -> None:
    """Serve until a signal. The caller shuts the engine down.

    Raises EngineFailed if the engine has stopped for good.
    """
    await app.state.context.read_adapters()
    server = draining_server(app, host, port, uds)
    watching = asyncio.create_task(server.end_with_engine())
    context = app.state.context
    with ExitStack() as listed:  # from when it listens until it ends
        server.listening = lambda url: listed.enter_context(
            announced(RunningServer.here(context.served_name, context.models[-1], url))
        )
        try:
            await server.serve()
        finally:
            watching.cancel()
            if uds:
                Path(uds).unlink(missing_ok=True)
    if server.failure:
        raise EngineFailed(server.failure)


def log_to_stderr(level: int = logging.INFO, as_json: bool = False) -> None:
    """Log to stderr, in lines of text or of JSON."""
    text = logging.Formatter("%(levelname)s %(name)s: %(message)s")
    lines = logging.StreamHandler(sys.stderr)
    lines.setFormatter(JsonFormatter() if as_json else text)
    logging.basicConfig(level=level, handlers=[lines])
    logging.getLogger("httpx").setLevel(logging.WARNING)  # each line of a batch is logged by us
