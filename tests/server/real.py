"""`serve` as a process of its own, with a small model that has real, random weights."""

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import httpx

PATIENCE_S = 180.0
ENGINE = {"kv_cache_gib": 0.01, "max_num_seqs": 4, "weights": "float32"}
PROGRAM = """
import json, sys
import uvicorn
from paceline.wiring.processes.serving import serve
from paceline.core.errors import PacelineError

begin = uvicorn.Server.startup

async def told(server, sockets=None):
    await begin(server, sockets)
    print(server.servers[0].sockets[0].getsockname()[1], flush=True)

uvicorn.Server.startup = told
status = 0
try:
    serve(sys.argv[1], port=0, **json.loads(sys.argv[2]))
except PacelineError as error:
    print(error)
    status = 3
print("torch" in sys.modules)
sys.exit(status)
"""


@dataclass
class Running:
    """A server's process, and a way into it."""

    process: "subprocess.Popen[str]"
    http: httpx.Client

    @property
    def core(self) -> int:
        """The process of the step loop."""
        (found,) = self.cores
        return found

    @property
    def cores(self) -> list[int]:
        """The processes of all step loops; none while they are restarted."""
        listing = ["ps", "-o", "pid=", "--ppid", str(self.process.pid)]
        found = subprocess.run(listing, capture_output=True, text=True, check=False)
        return [int(one) for one in found.stdout.split()]

    def until(self, path: str, status: int) -> httpx.Response:
        give_up = monotonic() + PATIENCE_S
        while monotonic() < give_up and self.process.poll() is None:
            with suppress(httpx.TransportError):
                if (response := self.http.get(path)).status_code == status:
                    return response
            sleep(0.05)
        raise AssertionError(f"{path} never had {status}; the server: {self.process.poll()}")

    def ended(self) -> tuple[int, str]:
        """Its status, and what it had to say."""
        said, _ = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, said


def port_of(process: "subprocess.Popen[str]") -> int:
    """Any that was free; the first thing that a server says."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], PATIENCE_S)
    assert ready, "the server never came up"
    said = process.stdout.readline()
    assert said, f"the server: {process.wait(PATIENCE_S)}"
    return int(said)


@contextmanager
def running(folder: Path, **settings: Any) -> Iterator[Running]:
    arguments = [str(folder), json.dumps(ENGINE | settings)]
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    try:
        url = f"http://127.0.0.1:{port_of(process)}"
        with httpx.Client(base_url=url, timeout=PATIENCE_S) as http:
            server = Running(process, http)
            server.until("/ready", 200)
            yield server
    finally:
        process.kill()
        process.communicate()
