from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any

from vllm.v1.engine import EngineCoreEventType, FinishReason

class RequestStatus(IntEnum):
    WAITING = 1
    WAITING_FOR_FSM = 2
    WAITING_FOR_REMOTE_KVS = 3
    RUNNING = 4
    PREEMPTED = 5
    FINISHED_STOPPED = 6
    FINISHED_LENGTH_CAPPED = 7
    FINISHED_ABORTED = 8
    FINISHED_IGNORED = 9
    FINISHED_ERROR = 10

class Request:
    request_id: str
    client_index: int
    arrival_time: float
    status: RequestStatus
    sampling_params: Any
    structured_output_request: Any
    trace_headers: Mapping[str, str] | None
    stop_reason: int | str | None
    all_token_ids: Any
    spec_token_ids: list[int]
    num_computed_tokens: int
    num_cached_tokens: int
    num_preemptions: int
    get_hash_new_full_blocks: Callable[[], list[Any]] | None

    @property
    def num_tokens(self) -> int: ...
    @property
    def num_output_tokens(self) -> int: ...
    def append_output_token_ids(self, token_ids: int | list[int]) -> None: ...
    def get_finished_reason(self) -> FinishReason | None: ...
    def record_event(self, event_type: EngineCoreEventType) -> None: ...
    def take_events(self) -> list[Any] | None: ...
