"""Starts a server as a process of its own, and stops it."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from socket import socket
from tempfile import TemporaryDirectory
from time import perf_counter, sleep
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
START_S = 180.0
STOP_S = 60.0
LOG_BYTES = 4000  # of a server that did not start


@contextmanager
def started(command: Sequence[str], **environment: str) -> Iterator[tuple[int, int]]:
    """Run a command, with a free port added, until the block ends; yields its process and port."""
    port = free_port()
    where = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    variables: Mapping[str, str] = {**os.environ, "PYTHONPATH": where, **environment}
    with TemporaryDirectory() as folder, (Path(folder) / "log").open("w") as log:
        server = subprocess.Popen(
            [*command, "--port", str(port)], stdout=log, stderr=log, env=variables
        )
        try:
            if not answers(server, port):
                said = Path(log.name).read_text()[-LOG_BYTES:]
                raise SystemExit(f"{' '.join(command)} did not start: {said}")
            yield server.pid, port
        finally:
            server.terminate()
            try:
                server.wait(STOP_S)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def free_port() -> int:
    with socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def answers(server: "subprocess.Popen[Any]", port: int) -> bool:
    """Wait until a server is ready; False if it ends before that, or takes too long."""
    begin = perf_counter()
    while perf_counter() - begin < START_S and server.poll() is None:
        connection = HTTPConnection("127.0.0.1", port, timeout=10)
        try:
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return True
        except OSError:
            pass
        finally:
            connection.close()
        sleep(0.1)
    return False
