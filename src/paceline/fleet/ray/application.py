"""The application for Ray Serve: an entry, and replicas of an engine behind it."""

from typing import Any

from ray import serve
from ray.serve import Application

from paceline.engine.settings import CoreSettings, EngineSettings
from paceline.fleet.ray.entry import Entry
from paceline.fleet.ray.ray_settings import RaySettings, read
from paceline.fleet.ray.replica import EngineReplica
from paceline.hub.catalogue import DEFAULT
from paceline.server.settings import ServerSettings
from paceline.wiring.json_settings import as_json
from paceline.wiring.settings import pop_settings, sort_settings

DEPLOYMENTS: Any = serve  # whose functions have types that are partly unknown
ROUTER = "paceline.fleet.ray.router:PrefixRouter"
ENTRY_REQUESTS = 16384  # most open requests of an entry
TRIES = 3  # to start a replica
IDLE_S = 0.5  # between two looks at the requests of a replica that drains


def app(settings: dict[str, Any]) -> Application:
    """Serve a model under Ray Serve, with the routes of `paceline serve`.

    Settings by name: `model`, those of `RaySettings`, and those of `paceline serve` except the
    address. The deployments are called `entry` and `engine`.

        serve run paceline.fleet.ray:app model=smollm2 max_replicas=4
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
