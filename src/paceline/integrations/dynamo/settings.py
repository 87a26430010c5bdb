"""Settings of a worker of NVIDIA Dynamo; this module imports nothing of Dynamo."""

from dataclasses import dataclass
from typing import Literal

from paceline.core.settings.checks import check_types, not_negative, require


@dataclass(frozen=True, slots=True)
class DynamoSettings:
    """Under which name Dynamo's frontend finds the worker, and how they reach each other.

    Attributes:
        namespace: Namespace of the fleet; DYN_NAMESPACE sets it too.
        component: Name of the workers that do the same; empty: prefill with --role prefill, else
            backend.
        endpoint: Name of the endpoint of the worker.
        discovery_backend: Where workers announce themselves; file: in the folder DYN_FILE_KV. It
            must be that of the frontend. DYN_DISCOVERY_BACKEND sets it too.
        request_plane: How requests reach the worker, as in the frontend; DYN_REQUEST_PLANE sets it
            too.
        event_plane: How KV events and loads reach the frontend, as there; DYN_EVENT_PLANE sets it
            too.
        served_model_name: Name of the model; empty: MODEL.
        tool_call_parser: Dynamo's parser of tool calls; empty: none.
        reasoning_parser: Dynamo's parser of reasoning; empty: none.
        drain_s: Time that running requests get to finish after a signal; then they move to other
            workers.
    """

    namespace: str = "dynamo"
    component: str = ""
    endpoint: str = "generate"
    discovery_backend: Literal["etcd", "kubernetes", "file", "mem"] = "etcd"
    request_plane: Literal["tcp", "nats"] = "tcp"
    event_plane: Literal["zmq", "nats"] = "zmq"
    served_model_name: str = ""
    tool_call_parser: str = ""
    reasoning_parser: str = ""
    drain_s: float = 30.0

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("namespace", "endpoint"):
            require(bool(getattr(self, name)), f"{name} is empty; give it a name")
        not_negative(self, "drain_s")
