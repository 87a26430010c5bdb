"""The settings of KV events."""

from dataclasses import dataclass
from typing import Literal, get_args

from paceline.core.setting_checks import check_types, not_negative, one_of, positive, require

Publisher = Literal["", "null", "zmq"]
EventEncoding = Literal["array", "map"]


@dataclass(frozen=True, slots=True)
class KVEventsConfig:
    """Where stored and removed blocks are published, in vLLM's names; `encoding` is ours, and so is
    `data_parallel_rank`, which several engines of a server get."""

    enable_kv_cache_events: bool = False  # publish events
    publisher: Publisher = ""  # "null": none; "": zmq if events are enabled
    endpoint: str = "tcp://*:5557"  # bound if it has a wildcard or is a file, else connected to
    replay_endpoint: str = ""  # bound, to send past batches again; "": they are not kept
    buffer_steps: int = 10_000  # batches kept for that
    hwm: int = 100_000  # batches queued for a subscriber that reads too slowly; more are dropped
    max_queue_size: int = 100_000  # batches that wait to be sent; more are dropped
    topic: str = ""  # first frame of each message, which subscribers filter by
    encoding: EventEncoding = "array"  # of events; "map": as vLLM from 0.24 on
    data_parallel_rank: int = 0  # which of several engines publishes; a part of each batch

    def __post_init__(self) -> None:
        check_types(self)
        one_of("publisher", self.publisher or "zmq", get_args(Publisher)[1:])
        one_of("encoding", self.encoding, get_args(EventEncoding))
        positive(self, "buffer_steps", "max_queue_size")
        not_negative(self, "hwm", "data_parallel_rank")
        for name in ("endpoint", "replay_endpoint"):
            given = getattr(self, name)
            require(
                "://" in given or (given == "" and name == "replay_endpoint"),
                f"{name} is {given!r}; write it as PROTOCOL://ADDRESS, such as tcp://*:5557",
            )

    @property
    def is_on(self) -> bool:
        return self.enable_kv_cache_events and self.publisher != "null"

    @property
    def is_bound(self) -> bool:
        """Whether subscribers connect to the endpoint, rather than the publisher to it."""
        return any(sign in self.endpoint for sign in ("*", "::", "ipc://", "inproc://"))
