"""Dynamo's frontend and workers of ours as processes, without etcd and NATS."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from socket import socket
from typing import Any

import httpx

from tests.integrations.sse import events_of
from tests.wiring.support import until

PLANES = ("--discovery-backend", "file", "--request-plane", "tcp", "--event-plane", "zmq")
MODEL = "tiny"
PATIENCE_S = 60.0


def free_port() -> int:
    """Dynamo reads some ports as numbers of 15 bits."""
    for port in Random().sample(range(20_000, 32_768), 100):
        with socket() as one, suppress(OSError):
            one.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


@dataclass
class WorkerProcess:
    """A worker, and the port of its metrics."""

    process: "subprocess.Popen[bytes]"
    port: int

    @property
    def instance(self) -> int:
        """The number under which Dynamo's router knows it."""
        (found,) = [
            one for one in self.metrics() if one.startswith("dynamo_component_total_blocks")
        ]
        return int(found.partition('worker_id="')[2].partition('"')[0], 16)

    def metrics(self) -> list[str]:
        return httpx.get(f"http://127.0.0.1:{self.port}/metrics").text.splitlines()

    def metric(self, begin: str) -> float:
        """The sum of those that begin so."""
        return sum(float(one.split()[-1]) for one in self.metrics() if one.startswith(begin))


@dataclass
class DynamoFleet:
    """A frontend, and the workers that it knows."""

    folder: Path
    http: httpx.Client
    processes: ExitStack
    started: "list[subprocess.Popen[bytes]]" = field(default_factory=list[Any])
    workers: list[WorkerProcess] = field(default_factory=list[WorkerProcess])

    def start(self, *arguments: str, **variables: str) -> "subprocess.Popen[bytes]":
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "DYN_FILE_KV": str(self.folder / "kv"),
            "DYN_LOG": "warn",
            "DYN_TCP_RPC_HOST": "127.0.0.1",
            "HOME": str(self.folder),
            **variables,
        }
        log = self.folder / f"{len(self.started)}.log"
        said = self.processes.enter_context(log.open("wb"))
        command = [sys.executable, "-m", *arguments]
        process = subprocess.Popen(command, env=environment, stdout=said, stderr=said)
        self.processes.callback(process.wait, PATIENCE_S)
        self.processes.callback(process.kill)
        self.started.append(process)
        return process

    def add(self, *arguments: str) -> WorkerProcess:
        """Start another worker, of the model in the folder."""
        port, folder = free_port(), str(self.folder)
        command = ("paceline", "serve-dynamo", folder, "--served-model-name", MODEL, *PLANES)
        started = WorkerProcess(self.start(*command, *arguments, DYN_SYSTEM_PORT=str(port)), port)
        self.workers.append(started)
        return started

    @property
    def instances(self) -> int:
        """Workers that the frontend knows."""
        with suppress(httpx.TransportError):
            found = self.http.get("/health").json().get("instances", ())
            return sum(one["endpoint"] == "generate" for one in found)
        return 0

    @property
    def models(self) -> list[str]:
        return [one["id"] for one in self.http.get("/v1/models").json()["data"]]

    def until_ready(self) -> None:
        def ready() -> bool:
            assert all(one.poll() is None for one in self.started), self.said()
            return self.instances == len(self.workers) and MODEL in self.models

        until(ready)

    def said(self) -> str:
        """What the processes wrote."""
        return "\n".join(one.read_text() for one in sorted(self.folder.glob("*.log")))

    def post(self, path: str, **fields: Any) -> httpx.Response:
        return self.http.post(path, json=body_of(fields))

    def complete(self, prompt: str | list[int], **fields: Any) -> dict[str, Any]:
        response = self.post("/v1/completions", prompt=prompt, **fields)
        assert response.status_code == httpx.codes.OK, response.text
        return response.json()

    @contextmanager
    def stream(self, prompt: list[int], **fields: Any) -> Iterator[Iterator[dict[str, Any]]]:
        """The events of a completion."""
        body = body_of({"prompt": prompt, "stream": True, **fields})
        with self.http.stream("POST", "/v1/completions", json=body) as response:
            yield events_of(response.iter_lines())


def body_of(fields: dict[str, Any]) -> dict[str, Any]:
    """A greedy request, whose answer says which worker it is from."""
    plain = {"model": MODEL, "temperature": 0, "ignore_eos": True}
    return {**plain, "nvext": {"extra_fields": ["worker_id"]}, **fields}


def worker_of(answer: dict[str, Any]) -> int:
    return answer["nvext"]["worker_id"]["decode_worker_id"]


@contextmanager
def dynamo_fleet(folder: Path, *frontend: str) -> Iterator[DynamoFleet]:
    port = free_port()
    with ExitStack() as processes:
        client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S)
        fleet = DynamoFleet(folder, processes.enter_context(client), processes)
        address = ("--http-host", "127.0.0.1", "--http-port", str(port))
        fleet.start("dynamo.frontend", *PLANES, *address, *frontend)
        yield fleet
