from collections.abc import Mapping
from enum import IntEnum
from typing import Any

from vllm.v1.metrics.stats import SchedulerStats

class FinishReason(IntEnum): ...

class EngineCoreEventType(IntEnum):
    QUEUED = 1
    SCHEDULED = 2
    PREEMPTED = 3

class EngineCoreOutput:
    request_id: str
    new_token_ids: list[int]
    new_logprobs: Any
    new_prompt_logprobs_tensors: Any
    finish_reason: FinishReason | None
    stop_reason: int | str | None
    events: list[Any] | None
    trace_headers: Mapping[str, str] | None
    num_cached_tokens: int
    num_nans_in_logits: int

    def __init__(
        self,
        request_id: str,
        new_token_ids: list[int],
        *,
        finish_reason: FinishReason | None = None,
        num_cached_tokens: int = 0,
    ) -> None: ...

class EngineCoreOutputs:
    outputs: list[EngineCoreOutput]
    scheduler_stats: SchedulerStats | None
    finished_requests: set[str] | None

    def __init__(self, *, outputs: list[EngineCoreOutput] = ...) -> None: ...
