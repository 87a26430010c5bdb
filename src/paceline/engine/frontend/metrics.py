"""Counters and histograms of requests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from paceline.core.arrays import F64
from paceline.core.events import Timings
from paceline.core.request import Finish
from paceline.engine.loop.figures import (
    SLEEP_STATES,
    TOKENS_PER_STEP,
    WAITING_FOR_GRAMMAR,
    Histogram,
    Report,
)
from paceline.sched.service.promises import CAUSES

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
    "external_prefix_cache_queries": "external_queries",
    "external_prefix_cache_hits": "external_hits",
    "mm_cache_queries": "encoder_queries",
    "mm_cache_hits": "encoder_hits",
    "spec_decode_num_drafts": "drafts",
    "spec_decode_num_draft_tokens": "drafted",
    "spec_decode_num_accepted_tokens": "accepted",
}
# Requests with targets that ended, by outcome.
PROMISED = {"attained": "slo_attained"} | {cause: f"slo_missed_{cause}" for cause in CAUSES}
# Totals of the compiler of grammars, by the names of their metrics.
GRAMMARS = {
    "grammars_compiled": "grammars_compiled",
    "grammars_refused": "grammars_refused",
    "grammar_cache_hits": "grammar_cache_hits",
    "grammar_compile_seconds": "grammar_compile_s",
}


@dataclass(frozen=True, slots=True)
class Lengths:
    """Token counts of a request, and the limits it set."""

    prompt: int
    outputs: Sequence[int]  # of each choice
    n: int
    max_tokens: int | None

    @property
    def longest(self) -> int:
        return max(self.outputs, default=0)


BOUNDS: dict[str, tuple[float, ...]] = {
    **dict.fromkeys(SECONDS, LATENCY_S),
    **dict.fromkeys(COUNTS, TOKENS),
    "request_params_n": SEQUENCES,
    "iteration_tokens_total": TOKENS_PER_STEP,
}
REASONS = tuple(finish.value for finish in Finish)
COUNTERS = (
    *("prompt_tokens", "generation_tokens", "prompt_tokens_cached", "prompt_tokens_computed"),
    *("crashes", *REASONS),
)

PLACES = {name: place for place, name in enumerate(COUNTERS)}


class Metrics:
    """Counters only grow. A report adds the counts of the scheduler.

    All figures are in one array, `cells`: first the counters, then the histograms. The sum of the
    cells of several front ends has the figures of all of them.
    """

    SIZE = len(COUNTERS) + sum(map(Histogram.cells_of, BOUNDS.values()))

    def __init__(self, cells: F64 | None = None) -> None:
        self.cells = np.zeros(self.SIZE) if cells is None else cells
        # The same cells, faster for one at a time.
        self._single = cast("memoryview[float]", self.cells.data)
        self._histograms: dict[str, Histogram] = {}
        begin = len(COUNTERS)
        for name, bounds in BOUNDS.items():
            end = begin + Histogram.cells_of(bounds)
            self._histograms[name] = Histogram(bounds, self.cells[begin:end])
            begin = end

    def _add(self, counter: str, amount: int = 1) -> None:
        self._single[PLACES[counter]] += amount

    def _total(self, counter: str) -> int:
        return int(self._single[PLACES[counter]])

    def _observe(self, histogram: str, value: float) -> None:
        self._histograms[histogram].observe(value)

    def first_token(self, prompt: int, after_s: float) -> None:
        self._add("prompt_tokens", prompt)
        self._observe("time_to_first_token_seconds", after_s)

    def next_tokens(self, gaps_s: F64) -> None:
        """Seconds between the latest tokens of each choice and those before them."""
        self._histograms["inter_token_latency_seconds"].observe_all(gaps_s)

    def repeated(self, gap_s: float, choices: int) -> None:
        """So many choices have one token more, each so many seconds after the one before."""
        self._histograms["inter_token_latency_seconds"].observe(gap_s, choices)
        self._add("generation_tokens", choices)

    def generated(self, tokens: int) -> None:
        self._add("generation_tokens", tokens)

    @property
    def tokens(self) -> int:
        """Tokens of prompts that have their first token, and generated ones."""
        return self._total("prompt_tokens") + self._total("generation_tokens")

    def delivered(self, before: int) -> None:
        """A delivery is over; there were `before` tokens when it began."""
        if self.tokens > before:
            self._observe("iteration_tokens_total", self.tokens - before)

    def ended(self, lengths: Lengths, cached: int, took: Timings) -> None:
        """A request is over."""
        self.cut(lengths, took.total_s)
        self.stages(lengths, cached, took)

    def stages(self, lengths: Lengths, cached: int, took: Timings) -> None:
        """The stages of a request are known: only those that it reached count."""
        observe, prompt = self._observe, lengths.prompt
        observe("request_queue_time_seconds", took.queue_s)
        if took.reached == "queue":
            return
        observe("request_inference_time_seconds", took.prefill_s + took.decode_s)
        if took.reached == "prefill":
            return
        self._add("prompt_tokens_cached", cached)
        self._add("prompt_tokens_computed", prompt - cached)
        observe("request_prefill_time_seconds", took.prefill_s)
        observe("request_decode_time_seconds", took.decode_s)
        if lengths.longest > 1:
            per_token = took.decode_s / (lengths.longest - 1)
            observe("request_time_per_output_token_seconds", per_token)
        observe("request_prefill_kv_computed_tokens", prompt - cached)

    def cut(self, lengths: Lengths, total_s: float) -> None:
        """A request is over, and the time in each stage is unknown."""
        observe = self._observe
        observe("e2e_request_latency_seconds", total_s)
        observe("request_prompt_tokens", lengths.prompt)
        observe("request_generation_tokens", sum(lengths.outputs))
        observe("request_max_num_generation_tokens", lengths.longest)
        observe("request_params_n", lengths.n)
        if lengths.max_tokens is not None:
            observe("request_params_max_tokens", lengths.max_tokens)

    def crashed(self) -> None:
        self._add("crashes")

    def finished(self, reason: str) -> None:
        """A choice has ended."""
        self._add(reason)

    def report(self, now: Mapping[str, Any]) -> Report:
        """All metrics; `now` is the answer of the engine to "gauges"."""
        waiting, parked = int(now["waiting"]), int(now["parked"])
        own = ("prompt_tokens", "generation_tokens", "prompt_tokens_cached")
        total = self._total
        asleep = now.get("sleep", SLEEP_STATES[0])
        return Report(
            gauges={
                "num_requests_running": now["running"],
                "num_requests_waiting": waiting + parked,
                "num_requests_swapped": now["swapped"],
                "kv_cache_usage_perc": now["kv_usage"],
            },
            counters={name: total(name) for name in own}
            | {name: now[counted] for name, counted in TOTALS.items()},
            histograms={name: each.copy() for name, each in self._histograms.items()},
            request_success={reason: total(reason) for reason in REASONS if total(reason)},
            labelled={
                "reason": {"capacity": waiting, "deferred": parked},
                "sleep_state": {one: float(one == asleep) for one in SLEEP_STATES},
                "phase": now.get("start", {}),
            },
            prompt_by_source={
                "local_compute": total("prompt_tokens_computed"),
                "local_cache_hit": total("prompt_tokens_cached"),
            },
            accepted_at=list(now["accepted_at"]),
            crashes=int(now.get("crashes", total("crashes"))),
            promised={name: int(now[counted]) for name, counted in PROMISED.items()},
            failed_rows=int(now["failed_rows"]),
            drafting_paused=bool(now["drafting_paused"]),
            lora=now.get("lora", {}),
            grammars={name: now.get(counted, 0) for name, counted in GRAMMARS.items()}
            | {WAITING_FOR_GRAMMAR: now.get(WAITING_FOR_GRAMMAR, 0)},
            cache_config={
                "num_gpu_blocks": int(now["total_blocks"]),
                "block_size": int(now["block_size"]),
                "enable_prefix_caching": bool(now["enable_prefix_caching"]),
            },
            step_tokens=Histogram(TOKENS_PER_STEP, np.array(now["step_tokens"], np.float64)),
            core_pid=int(now["pid"]),
        )
