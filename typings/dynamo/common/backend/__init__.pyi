from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any, Required, TypedDict

from dynamo._core import Context
from dynamo.common.backend.publisher import KvEventSource
from dynamo.common.constants import DisaggregationMode

class GenerateRequest(TypedDict, total=False):
    token_ids: Required[Any]
    model: str
    sampling_options: dict[str, Any]
    stop_conditions: dict[str, Any]
    output_options: dict[str, Any]
    prefill_result: dict[str, Any]
    multi_modal_data: dict[str, Any]
    routing: dict[str, Any]

class GenerateChunk(TypedDict, total=False):
    token_ids: Required[list[int]]
    index: Required[int]
    finish_reason: str
    completion_usage: dict[str, Any]
    disaggregated_params: dict[str, Any]
    log_probs: list[float]
    top_logprobs: list[list[dict[str, Any]]]
    engine_data: dict[str, Any]

@dataclass
class LlmRegistration:
    context_length: int | None = None
    kv_cache_block_size: int | None = None
    total_kv_blocks: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None

@dataclass
class EngineConfig:
    model: str
    served_model_name: str | None = None
    runtime_data: dict[str, Any] | None = None
    llm: LlmRegistration | None = None
    model_aliases: list[str] = field(default_factory=list[str])

@dataclass
class WorkerConfig:
    namespace: str
    component: str = "backend"
    endpoint: str = "generate"
    model_name: str = ""
    served_model_name: str | None = None
    endpoint_types: str = "chat,completions"
    discovery_backend: str = "etcd"
    request_plane: str = "tcp"
    event_plane: str | None = None
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    disaggregation_mode: DisaggregationMode = DisaggregationMode.AGGREGATED

class LLMEngine(ABC):
    @classmethod
    @abstractmethod
    async def from_args(cls, argv: list[str] | None = None) -> tuple[LLMEngine, WorkerConfig]: ...
    @abstractmethod
    async def start(self, worker_id: int) -> EngineConfig: ...
    @abstractmethod
    def generate(
        self, request: GenerateRequest, context: Context
    ) -> AsyncGenerator[GenerateChunk]: ...
    async def abort(self, context: Context) -> None: ...
    async def is_quiescent(self) -> bool | None: ...
    @abstractmethod
    async def cleanup(self) -> None: ...
    async def kv_event_sources(self) -> list[KvEventSource]: ...
    async def health_check_payload(self) -> dict[str, Any] | None: ...
    async def register_prometheus(self, metrics: Any) -> None: ...
    def component_metrics_dp_ranks(self) -> list[int]: ...
    def attach_snapshot_publisher(self, publisher: Any) -> None: ...

class Worker:
    def __init__(self, engine: LLMEngine, config: WorkerConfig) -> None: ...
    async def run(self) -> None: ...
