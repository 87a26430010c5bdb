"""The figures of an engine and its front ends, as `AsyncLLM` reports them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.engine.histogram import Histogram


@dataclass(frozen=True, slots=True)
class Report:
    """Every metric by the name that vLLM gives it, without prefix and without `_total`."""

    gauges: Mapping[str, float]
    counters: Mapping[str, float]
    histograms: Mapping[str, Histogram]
    request_success: Mapping[str, int]  # by finish reason
    waiting_by_reason: Mapping[str, int]  # capacity, deferred
    prompt_by_source: Mapping[str, int]  # prompt tokens, computed or found in the cache
    accepted_at: Sequence[int]  # drafts that were right, by place
    cache_config: Mapping[str, int | bool]  # num_gpu_blocks, block_size, enable_prefix_caching
    step_tokens: Histogram  # tokens that each step computed
    core_pid: int  # the process of the step loop; 0: there is none
    crashes: int  # of the step loop
    failed_rows: int  # results that ended their request with an error, and no other
    drafting_paused: bool  # does speculation not draft, because it does not pay?
    grammars: Mapping[str, float]  # totals of the compiler of grammars, and who waits for it
    lora: Mapping[str, str]  # adapters in use, as labels; empty: no adapters are served
