"""Connections of clients: bounded in number, and closed when a client sends or reads nothing."""

import asyncio
import logging
import os
import resource
import socket
from collections.abc import Callable, Collection
from errno import EMFILE, ENFILE, ENOBUFS, ENOMEM
from functools import partial
from typing import Any
from weakref import ref

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from paceline.server.errors import UNAVAILABLE, error_body
from paceline.server.replies.response_writer import EXTENSION, OPEN
from paceline.server.scoreboard import Scoreboard
from paceline.server.telemetry.request_log import UNREAD

log = logging.getLogger("paceline.server")

RESERVED_FILES = 64  # file descriptors that are no connections
ACCEPTED_AT_ONCE = 4  # connections, before the event loop has a turn
YIELD_S = 0.002  # for another process, which has fewer connections, to accept one
RETRY_S = 0.1  # until the next attempt to accept, without a free file descriptor
SILENT_S = 60.0  # between two log lines about the same problem
EXHAUSTED = (EMFILE, ENFILE, ENOBUFS, ENOMEM)
BUSY = msgspec.json.encode(
    error_body(UNAVAILABLE, "too many connections are open (max_connections)", code="busy")
)
FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 1\r\n"
    b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(BUSY), BUSY)
)


class TurnWrites:
    """What is written to a connection during one turn of the event loop leaves in one write."""

    def __init__(self) -> None:
        self._waiting: list[DirectBody] = []

    def add(self, body: "DirectBody") -> None:
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._flush)
        self._waiting.append(body)

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for body in waiting:
            try:
                body.flush()
            except Exception:  # it ends this response; the others are written
                log.exception("a response cannot be written")
                body.abort()


class DirectBody:
    """See `BodyWriter`. The body of a chunked response, past the middleware and without a task."""

    def __init__(self, cycle: RequestResponseCycle, writes: TurnWrites) -> None:
        self._flow, self._transport, self._writes = cycle.flow, cycle.transport, writes
        self._chunks: list[bytes] = []

    def write(self, body: bytes) -> bool:
        if not body:  # an empty chunk would end the response
            return True
        if not self._chunks:
            self._writes.add(self)
        self._chunks.append(b"%x\r\n%b\r\n" % (len(body), body))
        return not self._flow.write_paused

    @property
    def unsent(self) -> int:
        return sum(map(len, self._chunks)) + self._transport.get_write_buffer_size()

    def abort(self) -> None:
        self._transport.abort()

    def flush(self) -> None:
        if self._chunks and not self._transport.is_closing():
            self._transport.write(b"".join(self._chunks))
        self._chunks.clear()

    async def drain(self) -> None:
        self.flush()
        await self._flow.drain()


def open_body(cycle: ref[RequestResponseCycle], writes: TurnWrites) -> DirectBody | None:
    """A writer for a response that has started; None if its body is not sent in chunks."""
    found = cycle()
    if found is None or not found.chunked_encoding or found.scope["method"] == "HEAD":
        return None
    return DirectBody(found, writes)


class ClientConnection(HttpToolsProtocol):
    """A connection that knows since when its client has sent no head, or has read nothing.

    It offers the extension of `body_writer` to the application.
    """

    def __init__(self, *given: Any, writes: TurnWrites | None = None, **named: Any) -> None:
        super().__init__(*given, **named)
        self._writes = writes or TurnWrites()

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.since = self.loop.time()  # it was opened, or its last request ended
        self._head_since: float | None = self.since  # it waits for a head, or for the rest of one
        self._unread = 0, self.since  # bytes that wait, and since when they have been as many

    @property
    def is_idle(self) -> bool:
        """Whether there is no request, or only a part of its head."""
        return self.cycle is None or (self.cycle.response_complete and not self.pipeline)  # pyright: ignore[reportUnnecessaryComparison]

    @property
    def is_dispensable(self) -> bool:
        """Whether no whole request is open, so that closing it interrupts no work."""
        return not self.transport.is_closing() and (self.is_idle or self.cycle.more_body)

    def on_message_begin(self) -> None:
        self._head_since = self._head_since or self.loop.time()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._head_since = None
        before = self.cycle
        super().on_headers_complete()
        if self.cycle is not before:  # it is no upgrade
            opened = partial(open_body, ref(self.cycle), self._writes)
            self.cycle.scope["extensions"] = {EXTENSION: {OPEN: opened}}

    def on_response_complete(self) -> None:
        self.since = self.loop.time()
        super().on_response_complete()

    def check(self, head_s: float, unread_s: float) -> None:
        """Close it if a head is not complete after `head_s`; drop it if the client has read
        nothing for `unread_s` while bytes wait."""
        now, (waiting, since) = self.loop.time(), self._unread
        left = self.transport.get_write_buffer_size()
        if not (self.flow.write_paused or self.transport.is_closing()) or left != waiting:
            self._unread = left, now
        elif left and now - since >= unread_s:
            if not self.is_idle:
                self.cycle.scope.setdefault("state", {})[UNREAD] = True
            self.transport.abort()
        if self._head_since is not None and self.is_idle and now - self._head_since >= head_s:
            self.transport.close()


class Acceptor:
    """Accepts at most `most` connections, instead of the event loop, which has no bound.

    At the limit, a new connection replaces the one that has been without a request for longest.
    If all have a request, it is refused. `board` has the connections of other processes, which
    count as well. A process with more connections than another one leaves it the first chance to
    accept, so that clients spread.
    """

    def __init__(
        self,
        listeners: Collection[Any],
        create: Callable[[], ClientConnection],
        connections: Collection[Any],
        most: int,
        board: Scoreboard,
    ) -> None:
        self._create, self._connections, self._most = create, connections, most
        self._board = board
        self._at_once = 1 if board.is_shared else ACCEPTED_AT_ONCE
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[Any]] = set()
        self._log_at = 0.0  # when the next line about a problem may be written
        self._sockets = [socket.socket(fileno=os.dup(one.fileno())) for one in listeners]
        for mine, theirs in zip(self._sockets, listeners, strict=True):
            self._loop.remove_reader(theirs.fileno())
            self._loop.add_reader(mine, self._accept, mine)
        board.set_accepting(True)

    def close(self) -> None:
        self._board.set_accepting(False)
        for one in self._sockets:
            self._loop.remove_reader(one)
            one.close()

    def _accept(self, listener: socket.socket) -> None:
        if self._board.connections_ahead:
            self._loop.remove_reader(listener)
            self._loop.call_later(YIELD_S, self._accept_late, listener)
        else:
            self._take(listener)

    def _accept_late(self, listener: socket.socket) -> None:
        """Accept what no other process has accepted."""
        if listener.fileno() >= 0:  # it is not closed
            self._loop.add_reader(listener, self._accept, listener)
            self._take(listener)

    def _take(self, listener: socket.socket) -> None:
        for _ in range(self._at_once):
            if self._opening and self._full():
                return  # they can be replaced in the next turn of the event loop
            try:
                client, _address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in EXHAUSTED:
                    raise
                self._wait(listener, error)
                return
            self._connect(client)

    def _connect(self, client: socket.socket) -> None:
        client.setblocking(False)
        if self._full():
            self._warn(f"{self._most} connections are open (max_connections); idle ones are closed")
            if not self._replace():
                refuse(client)
                return
        opening = self._loop.create_task(self._open(client))
        self._opening.add(opening)
        opening.add_done_callback(self._opening.discard)
        self.publish()

    def publish(self) -> None:
        """Let the other processes know how many connections are open here."""
        self._board.set_connections(len(self._connections) + len(self._opening))

    async def _open(self, client: socket.socket) -> None:
        await self._loop.connect_accepted_socket(self._create, client)

    def _full(self) -> bool:
        here = len(self._connections) + len(self._opening)
        open_or_closing = here + self._board.connections_elsewhere
        if open_or_closing < self._most:  # which of them are closing need not be counted
            return False
        closing = sum(one.transport.is_closing() for one in self._connections)
        return open_or_closing - closing >= self._most

    def _replace(self) -> bool:
        """Close the connection that has been without a request for longest, if there is one."""
        found = [one for one in self._connections if one.is_dispensable]
        if not found:
            return False
        min(found, key=lambda one: one.since).transport.abort()
        return True

    def _wait(self, listener: socket.socket, error: OSError) -> None:
        """Free some file descriptors, and accept again a little later."""
        self._warn(f"connections cannot be accepted: {error.strerror}; idle ones are closed")
        for _ in range(ACCEPTED_AT_ONCE):
            self._replace()
        self._loop.remove_reader(listener)
        self._loop.call_later(RETRY_S, self._resume, listener)

    def _resume(self, listener: socket.socket) -> None:
        if listener.fileno() >= 0:  # it is not closed
            self._loop.add_reader(listener, self._accept, listener)

    def _warn(self, problem: str) -> None:
        """Log a problem, but not each time: a crowd of clients would fill the disk."""
        now = self._loop.time()
        if now >= self._log_at:
            self._log_at = now + SILENT_S
            log.warning("%s", problem)


def refuse(client: socket.socket) -> None:
    try:
        client.send(FULL)
    except OSError:
        pass  # the client is gone, or does not read
    finally:
        client.close()


def connection_limit(wanted: int) -> int:
    """Raise the limit on open files as far as `wanted` connections need and the system allows.

    Returns how many connections that allows: at most `wanted`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + RESERVED_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    return wanted if soft == resource.RLIM_INFINITY else max(min(wanted, soft - RESERVED_FILES), 1)
