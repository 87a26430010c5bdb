from dataclasses import dataclass
from typing import Any

from vllm.v1.spec_decode.metrics import SpecDecodingStats

@dataclass
class PrefixCacheStats:
    reset: bool = False
    requests: int = 0
    queries: int = 0
    hits: int = 0
    preempted_requests: int = 0
    preempted_queries: int = 0
    preempted_hits: int = 0

@dataclass
class SchedulerStats:
    num_running_reqs: int = 0
    num_waiting_reqs: int = 0
    kv_cache_usage: float = 0.0
    prefix_cache_stats: PrefixCacheStats = ...
    spec_decoding_stats: SpecDecodingStats | None = None
    cudagraph_stats: Any = None
