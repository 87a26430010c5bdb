"""Counts and histograms, as a fold over what the engine tells."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from paceline.engine.delivery import Timings

LATENCY_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKENS = tuple(float(step * 10**power) for power in range(6) for step in (1, 2, 5))
SEQUENCES = (1.0, 2.0, 5.0, 10.0, 20.0)

SECONDS = (
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_inference_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
)
COUNTS = (
    "request_prompt_tokens",
    "request_generation_tokens",
    "request_max_num_generation_tokens",
    "request_params_max_tokens",
    "request_prefill_kv_computed_tokens",
)
# vLLM's name of each total that the scheduler counts.
TOTALS = {
    "num_preemptions": "preemptions",
    "prefix_cache_queries": "prefix_queries",
    "prefix_cache_hits": "prefix_hits",
    "spec_decode_num_draft_tokens": "drafted",
    "spec_decode_num_accepted_tokens": "accepted",
}


@dataclass(slots=True)
class Histogram:
    """`counts[i]` values lie in (bounds[i - 1], bounds[i]]; the last count has no upper bound."""

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list[int])
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self.counts)

    def copy(self) -> "Histogram":
        return Histogram(self.bounds, list(self.counts), self.total)


@dataclass(frozen=True, slots=True)
class Report:
    """Every metric by the name that vLLM gives it, without prefix and without `_total`."""

    gauges: Mapping[str, float]
    counters: Mapping[str, float]
    histograms: Mapping[str, Histogram]
    request_success: Mapping[str, int]  # by finish reason
    waiting_by_reason: Mapping[str, int]  # capacity, deferred
    cache_config: Mapping[str, int]  # num_gpu_blocks, block_size


class Metrics:
    """Only grows. What the scheduler counts by itself is asked of it when reporting."""

    def __init__(self) -> None:
        self._seconds = {name: Histogram(LATENCY_S) for name in SECONDS}
        self._counts = {name: Histogram(TOKENS) for name in COUNTS}
        self._params_n = Histogram(SEQUENCES)
        self._totals: Counter[str] = Counter()
        self._success: Counter[str] = Counter()

    def asked(self, n: int, max_tokens: int | None) -> None:
        self._params_n.observe(n)
        if max_tokens is not None:
            self._counts["request_params_max_tokens"].observe(max_tokens)

    def first_token(self, prompt: int, after_s: float) -> None:
        self._totals["prompt_tokens"] += prompt
        self._seconds["time_to_first_token_seconds"].observe(after_s)

    def next_tokens(self, gap_s: float) -> None:
        self._seconds["inter_token_latency_seconds"].observe(gap_s)

    def generated(self, tokens: int) -> None:
        self._totals["generation_tokens"] += tokens

    def ended(self, prompt: int, cached: int, outputs: Sequence[int], took: Timings) -> None:
        """A request is over; `outputs` are the tokens of each choice."""
        seconds, counts = self._seconds, self._counts
        self._totals["prompt_tokens_cached"] += cached
        seconds["e2e_request_latency_seconds"].observe(took.total_s)
        seconds["request_queue_time_seconds"].observe(took.queue_s)
        seconds["request_prefill_time_seconds"].observe(took.prefill_s)
        seconds["request_decode_time_seconds"].observe(took.decode_s)
        seconds["request_inference_time_seconds"].observe(took.prefill_s + took.decode_s)
        longest = max(outputs, default=0)
        if longest > 1:
            per_token = took.decode_s / (longest - 1)
            seconds["request_time_per_output_token_seconds"].observe(per_token)
        counts["request_prompt_tokens"].observe(prompt)
        counts["request_generation_tokens"].observe(sum(outputs))
        counts["request_max_num_generation_tokens"].observe(longest)
        counts["request_prefill_kv_computed_tokens"].observe(prompt - cached)

    def finished(self, reason: str) -> None:
        """One choice is over."""
        self._success[reason] += 1

    def report(self, now: Mapping[str, float]) -> Report:
        """With what the engine answers to "gauges"."""
        measured = self._seconds | self._counts | {"request_params_n": self._params_n}
        waiting, parked = int(now["waiting"]), int(now["parked"])
        own = ("prompt_tokens", "generation_tokens", "prompt_tokens_cached")
        return Report(
            gauges={
                "num_requests_running": now["running"],
                "num_requests_waiting": waiting + parked,
                "kv_cache_usage_perc": now["kv_usage"],
            },
            counters={name: self._totals[name] for name in own}
            | {name: now[total] for name, total in TOTALS.items()},
            histograms={name: histogram.copy() for name, histogram in measured.items()},
            request_success=dict(self._success),
            waiting_by_reason={"capacity": waiting, "deferred": parked},
            cache_config={
                "num_gpu_blocks": int(now["total_blocks"]),
                "block_size": int(now["block_size"]),
            },
        )
