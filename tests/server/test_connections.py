"""Clients that connect and send nothing, or half of it, or do not read."""

import asyncio
import logging
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import httpx
import pytest

from paceline.server.connections import RESERVED_FILES, TurnWrites, connection_limit
from paceline.server.settings import ServerSettings
from tests.server.support import Site, on_its_own_server, paced

HEAD = b"GET /version HTTP/1.1\r\nHost: x\r\n"
BODY = b'{"prompt": "the", "max_tokens": 240, "ignore_eos": true, "stream": true, "n": 7}'
STREAM = (
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-Request-Id: unread\r\n"
    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)
)


def address(site: Site) -> tuple[str, int]:
    return "127.0.0.1", httpx.URL(site.url).port or 0


opened: list[socket.socket] = []


@pytest.fixture(autouse=True)
def no_connection_left() -> Iterator[None]:
    yield
    while opened:
        opened.pop().close()


class Client:
    """A connection with some bytes sent."""

    def __init__(self, site: Site, sent: bytes = b"") -> None:
        self.wire = socket.create_connection(address(site))
        opened.append(self.wire)
        self.wire.sendall(sent)
        self.wire.setblocking(False)

    async def read(self, end: bytes = b"") -> bytes:
        """All bytes up to the end of the connection, or up to these."""
        found = b""
        while not (end and end in found):
            try:
                more = await asyncio.get_running_loop().sock_recv(self.wire, 2**16)
            except ConnectionResetError:
                more = b""
            if not more:
                break
            found += more
        return found


def test_a_client_that_sends_no_whole_head_is_disconnected() -> None:
    async def scenario(site: Site) -> None:
        nothing, half = Client(site), Client(site, HEAD)
        second = Client(site, HEAD + b"\r\n" + HEAD)
        assert await nothing.read() == await half.read() == b""
        assert (await second.read()).count(b"HTTP/1.1 200") == 1
        await site.until(lambda: not site.server.server_state.connections)

    on_its_own_server(scenario, ServerSettings(head_s=0.1))


def test_a_request_may_take_longer_than_a_head_and_a_kept_connection_may_be_idle_longer() -> None:
    async def scenario(site: Site) -> None:
        body = {"prompt": "the", "max_tokens": 100, "ignore_eos": True}
        assert (await site.post("/v1/completions", **body)).status_code == 200
        (connection,) = site.server.server_state.connections
        await asyncio.sleep(0.3)
        assert site.server.server_state.connections == {connection}

    on_its_own_server(scenario, ServerSettings(head_s=0.1), breaks=paced)


def test_idle_connections_give_way_and_requests_do_not(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(site: Site) -> None:
        await site.engine.pause("all")
        running = Client(site, STREAM)
        await site.until(lambda: len(site.context.open_requests) == 1)
        idle = [Client(site, HEAD) for _ in range(30)]
        async with httpx.AsyncClient(base_url=site.url) as late:
            assert (await late.get("/health")).status_code == 200
        assert await idle[0].read() == b""
        assert len(site.server.server_state.connections) <= 4
        await site.engine.resume()
        assert b"[DONE]" in await running.read(b"[DONE]")

    settings = ServerSettings(max_connections=4)
    with caplog.at_level(logging.WARNING, "paceline.server"):
        on_its_own_server(scenario, settings, num_blocks=600)
    said = [one.getMessage() for one in caplog.records if "max_connections" in one.getMessage()]
    assert said == ["4 connections are open (max_connections); idle ones are closed"]


def test_one_connection_too_many_is_refused_while_all_have_a_request() -> None:
    async def scenario(site: Site) -> None:
        await site.engine.pause("all")
        running = [Client(site, STREAM.replace(b"unread", b"%d" % n)) for n in range(2)]
        await site.until(lambda: len(site.context.open_requests) == 2)
        refused = await Client(site).read()
        assert refused.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1" in refused
        assert b"too many connections are open (max_connections)" in refused
        await site.engine.resume()
        for one in running:
            assert b"[DONE]" in await one.read(b"[DONE]")

    on_its_own_server(scenario, ServerSettings(max_connections=2), num_blocks=1200)


@contextmanager
def few_files(more: int) -> Iterator[None]:
    """Only so many more file descriptors can be opened."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.dup(0) for _ in range(more)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(taken) + 1, before[1]))
    try:
        with suppress(OSError):
            while True:
                taken.append(os.dup(0))
        for _ in range(more):
            os.close(taken.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for one in taken:
            os.close(one)


def test_without_a_file_descriptor_it_waits_and_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(site: Site) -> None:
        for _ in range(30):
            Client(site)
        asking = Client(site, HEAD + b"Connection: close\r\n\r\n")
        with few_files(6):
            assert (await asking.read()).startswith(b"HTTP/1.1 200")

    with caplog.at_level(logging.WARNING):
        on_its_own_server(scenario)
    said = [one.getMessage() for one in caplog.records]
    assert said == ["connections cannot be accepted: Too many open files; idle ones are closed"]


@pytest.mark.parametrize(("soft", "wanted", "most"), [(200, 100, 100), (200, 10**9, None)])
def test_the_limit_on_files_is_raised_as_far_as_it_can_be(
    soft: int, wanted: int, most: int | None
) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, before[1]))
    try:
        found = connection_limit(wanted)
        now = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert found == (before[1] - RESERVED_FILES if most is None else most)
    assert now == (before[1] if most is None else soft)


def test_a_client_that_does_not_read_is_dropped_and_its_request_aborted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its stream has more bytes than fit into the buffers, and is not generated to the end."""

    async def scenario(site: Site) -> None:
        wire = socket.socket()
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        wire.connect(address(site))
        wire.sendall(STREAM)
        await site.until(lambda: "unread" in site.context.open_requests)
        await site.until(lambda: not site.context.open_requests)
        await site.until(lambda: not site.server.server_state.connections)
        wire.close()

    with caplog.at_level(logging.INFO, "paceline.requests"):
        settings = ServerSettings(unread_s=0.2, send_buffer_bytes=4096)
        on_its_own_server(scenario, settings, breaks=paced, num_blocks=600)
    (line,) = [one.getMessage() for one in caplog.records if one.name == "paceline.requests"]
    assert "aborted (the client did not read its stream)" in line


def test_what_the_kernel_buffers_is_bounded() -> None:
    async def scenario(site: Site) -> None:
        await site.http.get("/version")
        (connection,) = site.server.server_state.connections
        wire: Any = connection.transport.get_extra_info("socket")
        assert wire.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 2 * 8192  # of the kernel

    on_its_own_server(scenario, ServerSettings(send_buffer_bytes=8192))


def test_a_response_that_cannot_be_written_does_not_keep_others_from_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class FailingBody:
        aborted = False

        def flush(self) -> None:
            raise RuntimeError("no")

        def abort(self) -> None:
            self.aborted = True

    class WrittenBody(FailingBody):
        written = False

        def flush(self) -> None:
            self.written = True

    async def write() -> None:
        writes, failing, written = TurnWrites(), FailingBody(), WrittenBody()
        writes.add(failing)  # type: ignore[arg-type]
        writes.add(written)  # type: ignore[arg-type]
        await asyncio.sleep(0)
        assert (failing.aborted, written.written, written.aborted) == (True, True, False)

    asyncio.run(write())
    assert "a response cannot be written" in caplog.text
