"""Settings of a worker of NVIDIA Dynamo."""

from dataclasses import dataclass
from typing import Literal, get_args

from paceline.core.setting_checks import check_types, not_negative, one_of, require

DiscoveryBackend = Literal["etcd", "kubernetes", "file", "mem"]
RequestPlane = Literal["tcp", "nats"]
EventPlane = Literal["zmq", "nats"]


@dataclass(frozen=True, slots=True)
class DynamoSettings:
    """Under which name Dynamo's frontend finds the worker, and how they reach each other.

    The frontend needs the same discovery backend and the same planes.
    """

    namespace: str = "dynamo"  # of the fleet
    component: str = ""  # workers that do the same; "": prefill for that role, else backend
    endpoint: str = "generate"
    discovery_backend: DiscoveryBackend = "etcd"  # where workers announce themselves
    request_plane: RequestPlane = "tcp"  # how requests reach workers
    event_plane: EventPlane = "zmq"  # how KV events and loads reach the frontend
    served_model_name: str = ""  # what clients call the model; "": as the command does
    tool_call_parser: str = ""  # of Dynamo's frontend; "": none
    reasoning_parser: str = ""  # the same
    drain_s: float = 30.0  # seconds that open requests have to finish after a signal

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("namespace", "endpoint"):
            require(bool(getattr(self, name)), f"{name} is empty; give it a name")
        one_of("discovery_backend", self.discovery_backend, get_args(DiscoveryBackend))
        one_of("request_plane", self.request_plane, get_args(RequestPlane))
        one_of("event_plane", self.event_plane, get_args(EventPlane))
        not_negative(self, "drain_s")
