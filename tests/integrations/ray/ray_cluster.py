"""A client of a Ray cluster in another process."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from socket import socket
from threading import Lock
from typing import Any

import httpx

from tests.integrations.sse import events_of
from tests.wiring.support import DESCRIBED

LONGEST = 2048
MODEL: dict[str, Any] = {
    "load_format": "dummy",
    "device": "cpu",
    "kv_cache_gib": 0.02,
}
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "1",
    "RAY_SERVE_HANDLE_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "1",
    # A proxy that is not ready in time is ended, and a busy machine needs more than five seconds.
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "60",
    "RAY_prestart_worker_first_driver": "0",  # no processes that no test uses
    "RAY_enable_worker_prestart": "0",
    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
}
REPLICA = "x-paceline-replica"
PATIENCE_S = 60.0


@dataclass
class RayCluster:
    """Two nodes, and a client of the HTTP proxy."""

    process: "subprocess.Popen[str]"
    folder: Path
    http: httpx.Client
    lock: Lock = field(default_factory=Lock)  # one command at a time

    def obey(self, **command: Any) -> Any:
        assert self.process.stdin
        assert self.process.stdout
        with self.lock:
            self.process.stdin.write(json.dumps(command) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        assert line, (self.folder / "log").read_text()[-4000:]
        return json.loads(line)

    def serve(self, **settings: Any) -> None:
        # With a thread, each replica has one process less.
        self.obey(serve={"model": str(self.folder), "core": "thread", **MODEL, **settings})

    def post(self, prompt: Any, **fields: Any) -> httpx.Response:
        return self.http.post("/v1/completions", json=body_of(prompt, fields))

    @contextmanager
    def stream(self, prompt: Any, **fields: Any) -> Iterator[Iterator[dict[str, Any]]]:
        """The events of a completion."""
        body = body_of(prompt, {"stream": True, **fields})
        with self.http.stream("POST", "/v1/completions", json=body) as response:
            yield events_of(response.iter_lines())

    def metric(self, begin: str) -> float:
        """The sum over all replicas."""
        lines = self.http.get("/metrics").text.splitlines()
        return sum(float(one.split()[-1]) for one in lines if one.startswith(begin))


def body_of(prompt: Any, fields: dict[str, Any]) -> dict[str, Any]:
    return {"prompt": prompt, "temperature": 0, "ignore_eos": True, **fields}


def free_port() -> int:
    with socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@contextmanager
def ray_cluster(folder: Path) -> Iterator[RayCluster]:
    """Without an application."""
    described = {**DESCRIBED, "max_position_embeddings": LONGEST}
    (folder / "config.json").write_text(json.dumps(described))
    port = free_port()
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.integrations.ray.cluster_main", str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, **ENVIRONMENT},
        )
        client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S)
        with process, client:
            try:
                yield RayCluster(process, folder, client)
            finally:
                assert process.stdin
                process.stdin.close()
                process.wait(PATIENCE_S)
