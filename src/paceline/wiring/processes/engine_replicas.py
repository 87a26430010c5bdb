"""Divides CPU cores, GPUs, ports and files among several engines with the same model."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.core.errors import ConfigError
from paceline.core.settings.features import KVEventsConfig
from paceline.core.settings.load import Device
from paceline.engine.transport.child_process import ProcessPlace
from paceline.wiring.vllm.configs import EVENTS_EXAMPLE, TRANSFER, content_of
from paceline.wiring.vllm.values import EVENTS, mapping_in

VISIBLE = "CUDA_VISIBLE_DEVICES"
NVIDIA = Path("/proc/driver/nvidia/gpus")  # a folder for each GPU
PORT = re.compile(r":(\d+)$")


def places(engines: int, device: Device, gpus_each: int) -> list[ProcessPlace]:
    """Where the process of each engine runs: on GPUs of its own, or on CPU cores of its own.

    ConfigError if there are fewer GPUs.
    """
    gpus = [] if device == "cpu" else visible_gpus(os.environ, NVIDIA)
    if not gpus:
        return [ProcessPlace(cpus=cpus) for cpus in shares(usable_cpus(), engines)]
    if len(gpus) < engines * gpus_each:
        raise ConfigError(
            f"data_parallel_size is {engines} and needs {engines * gpus_each} GPUs, but there are "
            f"{len(gpus)}: lower it, or name a GPU several times in {VISIBLE}, such as 0,0, if it "
            "has memory for several engines (see gpu_memory_utilization)"
        )
    groups = [gpus[first : first + gpus_each] for first in range(0, len(gpus), gpus_each)]
    return [ProcessPlace(variables={VISIBLE: ",".join(group)}) for group in groups[:engines]]


def visible_gpus(environ: Mapping[str, str], driver: Path) -> list[str]:
    """The GPUs that CUDA would see here, by number or name."""
    if (named := environ.get(VISIBLE)) is not None:
        return [one.strip() for one in named.split(",") if one.strip() not in ("", "-1")]
    return [str(number) for number, _ in enumerate(driver.iterdir())] if driver.is_dir() else []


def usable_cpus() -> list[int]:
    """The CPU cores that this process may use; none if the system does not say."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def shares(cpus: Sequence[int], engines: int) -> list[tuple[int, ...]]:
    """Consecutive cores for each engine. If there are fewer cores than engines, some share one."""
    if len(cpus) < engines:
        return [(cpus[engine % len(cpus)],) if cpus else () for engine in range(engines)]
    ends = [len(cpus) * engine // engines for engine in range(engines + 1)]
    return [tuple(cpus[ends[engine] : ends[engine + 1]]) for engine in range(engines)]


def settings_of(settings: Mapping[str, Any], engine: int) -> dict[str, Any]:
    """The settings of one engine: no two bind the same port or write the same recording, and each
    has a name in the timeline."""
    found = dict(settings)
    if found.get(EVENTS):
        found[EVENTS] = events_of(mapping_in(EVENTS, found[EVENTS], EVENTS_EXAMPLE), engine)
    if found.get(TRANSFER):
        found[TRANSFER] = transfer_of(content_of(found[TRANSFER]), engine)
    if found.get("record"):
        path = Path(found["record"])
        found["record"] = str(path.with_stem(f"{path.stem}-engine{engine}"))
    return found | {"trace_name": f"engine {engine}"}


def events_of(config: dict[str, Any], engine: int) -> str:
    """Ports plus the rank, as vLLM numbers them, and the rank in every batch."""
    endpoint = config.get("endpoint") or KVEventsConfig().endpoint
    config |= {"endpoint": numbered(endpoint, engine), "data_parallel_rank": engine}
    if replay := config.get("replay_endpoint"):
        config["replay_endpoint"] = numbered(replay, engine)
    return json.dumps(config)


def transfer_of(config: dict[str, Any], engine: int) -> str:
    """A name and a side channel of its own, as vLLM has them."""
    if name := config.get("engine_id"):
        config["engine_id"] = f"{name}_dp{engine}"
    options = dict(config.get("kv_connector_extra_config") or {})
    if port := options.get("side_channel_port"):
        config["kv_connector_extra_config"] = options | {"side_channel_port": port + engine}
    return json.dumps(config)


def numbered(endpoint: str, engine: int) -> str:
    """Endpoints of several engines: a port plus the rank, or a name with the rank."""
    if PORT.search(endpoint):
        return PORT.sub(lambda found: f":{int(found[1]) + engine}", endpoint)
    return f"{endpoint}_dp{engine}"
