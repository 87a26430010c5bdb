"""A Ray cluster of two nodes on this machine: `python -m tests.integrations.ray.cluster_main PORT`.

It reads commands from stdin, one JSON value a line, and answers each with a line. The cluster ends
with stdin.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray.cluster_utils import Cluster

from paceline.integrations.ray import app

# Not 127.0.0.1, which Ray replaces by an address that other machines can reach.
HEAD, SECOND = "127.0.0.2", "127.0.0.3"
TITLE = b"ray::ServeReplica:default:engine"


def engines() -> list[int]:
    """The process ids of all replicas of the engine that this process has started."""
    titles = {
        int(one.parent.name): one.read_bytes() for one in Path("/proc").glob("[0-9]*/cmdline")
    }
    return sorted(one for one, title in titles.items() if title.startswith(TITLE))


def running() -> int:
    status: Any = serve.status().applications["default"].deployments["engine"]
    return status.replica_states.get("RUNNING", 0)


def obeyed(command: dict[str, Any]) -> Any:
    match command:
        case {"serve": settings}:
            serve.run(app(settings), name="default")
        case {"kill": pid}:
            os.kill(pid, signal.SIGKILL)
        case {"stop": _}:
            serve.delete("default", _blocking=False)
        case {"engines": _}:
            return engines()
        case {"running": _}:
            return running()
    return None


def main(port: int) -> None:
    said = os.fdopen(os.dup(1), "w", buffering=1)  # Ray writes to stdout
    os.dup2(2, 1)
    head = {"num_cpus": 2, "include_dashboard": False, "node_ip_address": HEAD}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        cluster.add_node(num_cpus=2, node_ip_address=SECOND)
        ray.init(cluster.address, _node_ip_address=HEAD, log_to_driver=False)
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        for line in sys.stdin:
            print(json.dumps(obeyed(json.loads(line))), file=said)
        serve.shutdown()
    finally:
        ray.shutdown()  # first: a cluster keeps the node that this process is connected to
        cluster.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]))
