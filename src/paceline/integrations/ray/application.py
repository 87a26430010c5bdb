"""The application for Ray Serve: its settings, an entry, and replicas of an engine."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, cast

from ray import serve
from ray.serve import Application

from paceline.core.settings.checks import check_types, not_negative, positive, require
from paceline.core.settings.config import COMPONENTS
from paceline.core.settings.load import LoadConfig
from paceline.engine.settings import CoreSettings, EngineSettings
from paceline.hub.catalogue import DEFAULT
from paceline.integrations.ray.entry import Entry
from paceline.integrations.ray.replica import EngineReplica
from paceline.server.settings import ServerSettings
from paceline.wiring.settings import pop_settings, sort_settings
from paceline.wiring.vllm.values import as_json

API_KEYS = "PACELINE_API_KEY"  # the variable that `paceline serve` reads: keys between spaces


@dataclass(frozen=True, slots=True)
class RaySettings:
    """How many replicas there are, and what each needs. A replica has one engine."""

    min_replicas: int = 1
    max_replicas: int = 0  # 0: as many as min_replicas, so the number does not change
    target_ongoing_requests: float = 32.0  # of a replica, on average; with more, one is added
    max_ongoing_requests: int = 1024  # of a replica; more requests wait in the entry
    upscale_delay_s: float = 10.0  # seconds of a high load before a replica is added
    downscale_delay_s: float = 300.0  # seconds of a low load before a replica is removed
    num_cpus: float = 1.0  # of a replica
    num_gpus: float = 0.0  # of a replica
    entries: int = 1  # processes that accept requests and choose a replica for each

    def __post_init__(self) -> None:
        check_types(self)
        positive(self, "min_replicas", "entries")
        positive(self, "target_ongoing_requests", "max_ongoing_requests")
        not_negative(self, "max_replicas", "num_cpus", "num_gpus")
        not_negative(self, "upscale_delay_s", "downscale_delay_s")
        require(
            self.max_replicas == 0 or self.max_replicas >= self.min_replicas,
            f"max_replicas is {self.max_replicas}; it must be 0 or at least min_replicas "
            f"({self.min_replicas})",
        )


KINDS = (RaySettings, LoadConfig, CoreSettings, EngineSettings, ServerSettings)
DEFAULTS: dict[str, Any] = {"model": ""} | {
    one.name: one.default for kind in (*KINDS, *COMPONENTS.values()) for one in fields(kind)
}


def read(given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with their types in Python: the command line of Ray gives texts, YAML gives lists.

    Without API keys, those of the environment are taken.
    """
    settings = {name: typed(DEFAULTS.get(name), value) for name, value in given.items()}
    if keys := os.environ.get(API_KEYS):
        settings.setdefault("api_keys", tuple(keys.split()))
    return settings


def typed(default: Any, given: Any) -> Any:
    """A value of the type of the default."""
    if isinstance(default, tuple):
        several: list[Any] = cast("list[Any]", given) if isinstance(given, list) else [given]
        return tuple(several)
    if isinstance(default, str) or not isinstance(given, str):
        return given
    try:
        return json.loads(given)
    except ValueError:
        return given  # the setting says what is wrong with it


DEPLOYMENTS: Any = serve  # whose functions have types that are partly unknown
ROUTER = "paceline.integrations.ray.router:PrefixRouter"
ENTRY_REQUESTS = 16384  # most open requests of an entry
TRIES = 3  # to start a replica
IDLE_S = 0.5  # between two looks at the requests of a replica that drains


def app(settings: dict[str, Any]) -> Application:
    """Serve a model under Ray Serve, with the routes of `paceline serve`.

    Settings by name: `model`, those of `RaySettings`, and those of `paceline serve` except the
    address. The deployments are called `entry` and `engine`.

        serve run paceline.integrations.ray:app model=smollm2 max_replicas=4
    """
    given = as_json(read(settings))
    model: str = given.pop("model", DEFAULT)
    ray: RaySettings = pop_settings(RaySettings, given)
    server: ServerSettings = pop_settings(ServerSettings, given)
    check(given)
    engine = DEPLOYMENTS.deployment(EngineReplica).options(
        name="engine",
        ray_actor_options={"num_cpus": ray.num_cpus, "num_gpus": ray.num_gpus},
        max_ongoing_requests=ray.max_ongoing_requests,
        autoscaling_config={
            "min_replicas": ray.min_replicas,
            "max_replicas": ray.max_replicas or ray.min_replicas,
            "target_ongoing_requests": ray.target_ongoing_requests,
            "upscale_delay_s": ray.upscale_delay_s,
            "downscale_delay_s": ray.downscale_delay_s,
        },
        request_router_config={"request_router_class": ROUTER},
        graceful_shutdown_wait_loop_s=IDLE_S,
        graceful_shutdown_timeout_s=server.drain_s,
        max_constructor_retry_count=TRIES,
    )
    entry = DEPLOYMENTS.deployment(DEPLOYMENTS.ingress()(Entry)).options(
        name="entry",
        num_replicas=ray.entries,
        max_ongoing_requests=ENTRY_REQUESTS,
        graceful_shutdown_wait_loop_s=IDLE_S,
        graceful_shutdown_timeout_s=server.drain_s,
    )
    return entry.bind(engine.bind(model, server, given), server)


def check(settings: dict[str, Any]) -> None:
    """ConfigError if a setting of the engine is unknown or wrong, before replicas start."""
    rest = dict(settings)
    pop_settings(CoreSettings, rest)
    pop_settings(EngineSettings, rest)
    sort_settings(rest)
