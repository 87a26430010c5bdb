"""The metrics of the engine in the format of Prometheus, under vLLM's names."""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import accumulate
from time import time
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from paceline.core.request import Finish
from paceline.engine.frontend.metrics import GRAMMARS
from paceline.engine.loop.figures import WAITING_FOR_GRAMMAR, Histogram, Report

METRIC_HELP = {
    # gauges
    "num_requests_running": "Requests with a slot, which the next step may compute.",
    "num_requests_waiting": "Requests without a slot: in the queue, swapped or parked.",
    "num_requests_swapped": "Waiting requests whose KV is on the host.",
    "num_requests_waiting_by_reason": "Waiting requests: for capacity, or deferred until an event.",
    "kv_cache_usage_perc": "Share of the KV blocks that requests hold, 0 to 1.",
    "gpu_cache_usage_perc": "The old name of kv_cache_usage_perc.",
    "lora_requests_info": "Adapters of running and of waiting requests, as labels; its value is a "
    "time in seconds.",
    "engine_sleep_state": "1 for the state of the engine: awake, weights_offloaded or discard_all.",
    "cache_config_info": "Settings of the KV cache, as labels.",
    # counters
    "prompt_tokens": "Prompt tokens of requests that have their first token.",
    "prompt_tokens_cached": "Prompt tokens that came from the prefix cache, of finished requests "
    "that had a token.",
    "prompt_tokens_by_source": "Prompt tokens of finished requests that had a token, computed or "
    "from the cache.",
    "generation_tokens": "Tokens generated.",
    "request_success": "Finished choices, by finish reason.",
    "num_preemptions": "Preemptions of requests.",
    "prefix_cache_queries": "Tokens looked up in the prefix cache.",
    "prefix_cache_hits": "Tokens found in the prefix cache.",
    "external_prefix_cache_queries": "Tokens looked up on the host or by a connector.",
    "external_prefix_cache_hits": "Tokens found on the host or by a connector.",
    "mm_cache_queries": "Images that prompts reached and that were looked up in the encoder cache.",
    "mm_cache_hits": "Images found in the encoder cache.",
    "gpu_prefix_cache_queries": "The old name of prefix_cache_queries.",
    "gpu_prefix_cache_hits": "The old name of prefix_cache_hits.",
    "spec_decode_num_drafts": "Rows that verified drafts.",
    "spec_decode_num_draft_tokens": "Draft tokens verified.",
    "spec_decode_num_accepted_tokens": "Accepted draft tokens.",
    "spec_decode_num_accepted_tokens_per_pos": "Accepted draft tokens, by position.",
    # histograms, observed once per request unless the text says otherwise
    "time_to_first_token_seconds": "From arrival to the first token.",
    "inter_token_latency_seconds": "Between two deliveries of tokens of a choice.",
    "request_time_per_output_token_seconds": "Time after the first token, per further token.",
    "e2e_request_latency_seconds": "From arrival to the end.",
    "request_queue_time_seconds": "From arrival to the first slot, or to the end without one.",
    "request_inference_time_seconds": "From the first slot to the end.",
    "request_prefill_time_seconds": "From the first slot to the first token.",
    "request_decode_time_seconds": "From the first token to the end.",
    "request_prompt_tokens": "Tokens of the prompt.",
    "request_generation_tokens": "Tokens generated for all choices together.",
    "request_max_num_generation_tokens": "Tokens of the longest choice.",
    "request_params_max_tokens": "max_tokens of the request, if it is set.",
    "request_params_n": "n of the request.",
    "request_prefill_kv_computed_tokens": "Prompt tokens that were not in the cache.",
    "iteration_tokens_total": "Tokens of a step that generated some: those, and the prompts of "
    "requests that have their first token with it.",
    # of paceline
    "engine_healthy": "1, or 0 while /health answers 503.",
    "start_seconds": "Seconds of each phase of the engine's start.",
    "drafting_paused": "1 while speculation does not draft because it would cost time, else 0.",
    "num_requests_waiting_for_grammar": "Requests that wait until their grammar is compiled.",
    "grammars_compiled": "Grammars compiled.",
    "grammars_refused": "Constraints that were malformed, not supported or too costly.",
    "grammar_cache_hits": "Constraints whose grammar, or refusal, was in the cache.",
    "grammar_compile_seconds": "Seconds that compiling took, of all constraints together.",
    "engine_crashes": "Times that the step loop died.",
    "failed_rows": "Requests that failed alone, without the others of their step.",
    "slo_requests": "Finished requests with targets: attained, or missed, by cause.",
    "step_tokens": "Tokens computed in a step, of prompts and drafts too.",
    # of HTTP
    "http_requests": "Requests by route, method and status; 499: the client left before a status.",
    "http_request_duration_seconds": "From the head of a request to the end of its response.",
}


LABELS = ("model_name", "engine")
LORA = "vllm:lora_requests_info"
START = "start_seconds"
LABELLED = {  # gauges with a label of their own
    "num_requests_waiting_by_reason": "reason",
    "engine_sleep_state": "sleep_state",
    START: "phase",
}
PROMISED = ("slo_requests", "outcome")
ACCEPTED = ("spec_decode_num_accepted_tokens_per_pos", "position")
# Old names that routers still read, and their present names.
OLD_GAUGES = {"gpu_cache_usage_perc": "kv_cache_usage_perc"}
OLD_COUNTERS = {
    "gpu_prefix_cache_queries": "prefix_cache_queries",
    "gpu_prefix_cache_hits": "prefix_cache_hits",
}


class EngineMetrics(Collector):
    """Collects the report of an engine. Every family has the labels of the model and of the engine.

    `cache` has further labels of `cache_config_info`.
    """

    def __init__(
        self, report: Report, model: str, engine: int, healthy: bool, cache: Mapping[str, Any]
    ) -> None:
        self._report, self._values, self._healthy = report, (model, str(engine)), healthy
        self._cache = cache

    def collect(self) -> Iterator[Metric]:
        report = self._report
        for name, value in with_old_names(report.gauges, OLD_GAUGES).items():
            gauge = GaugeMetricFamily(f"vllm:{name}", METRIC_HELP[name], labels=LABELS)
            gauge.add_metric(self._values, value)
            yield gauge
        for name, value in with_old_names(report.counters, OLD_COUNTERS).items():
            counter = CounterMetricFamily(f"vllm:{name}", METRIC_HELP[name], labels=LABELS)
            counter.add_metric(self._values, value)
            yield counter
        for name, histogram in report.histograms.items():
            family = HistogramMetricFamily(f"vllm:{name}", METRIC_HELP[name], labels=LABELS)
            family.add_metric(self._values, buckets(histogram), histogram.total)
            yield family
        yield from self._labelled()
        yield from self._own()

    def _labelled(self) -> Iterator[Metric]:
        """Families with a label of their own."""
        report = self._report
        ends = {reason.value: 0 for reason in Finish} | dict(report.request_success)
        places = {str(place): count for place, count in enumerate(report.accepted_at)}
        for kind, name, label, counts in (
            (CounterMetricFamily, "request_success", "finished_reason", ends),
            *(
                (GaugeMetricFamily, name, label, report.labelled[label])
                for name, label in LABELLED.items()
            ),
            (CounterMetricFamily, "prompt_tokens_by_source", "source", report.prompt_by_source),
            (CounterMetricFamily, *ACCEPTED, places),
        ):
            owner = "paceline" if name == START else "vllm"
            family = kind(f"{owner}:{name}", METRIC_HELP[name], labels=(*LABELS, label))
            for value, count in counts.items():
                family.add_metric((*self._values, value), count)
            yield family
        if report.lora:
            names, used = (*LABELS, *report.lora), (*self._values, *report.lora.values())
            lora = GaugeMetricFamily(LORA, METRIC_HELP["lora_requests_info"], labels=names)
            lora.add_metric(used, time())
            yield lora
        labels = {**self._cache, **report.cache_config}
        config = {name: str(value) for name, value in sorted(labels.items())}
        cache = GaugeMetricFamily(
            "vllm:cache_config_info", METRIC_HELP["cache_config_info"], labels=(*LABELS, *config)
        )
        cache.add_metric((*self._values, *config.values()), 1)
        yield cache

    def _own(self) -> Iterator[Metric]:
        """Metrics without a name in vLLM."""
        report = self._report
        for kind, name, value in (
            (GaugeMetricFamily, "engine_healthy", float(self._healthy)),
            (GaugeMetricFamily, "drafting_paused", float(report.drafting_paused)),
            (
                GaugeMetricFamily,
                "num_requests_waiting_for_grammar",
                report.grammars[WAITING_FOR_GRAMMAR],
            ),
            *((CounterMetricFamily, name, report.grammars[name]) for name in GRAMMARS),
            (CounterMetricFamily, "engine_crashes", report.crashes),
            (CounterMetricFamily, "failed_rows", report.failed_rows),
        ):
            family = kind(f"paceline:{name}", METRIC_HELP[name], labels=LABELS)
            family.add_metric(self._values, value)
            yield family
        name, label = PROMISED
        promised = CounterMetricFamily(
            f"paceline:{name}", METRIC_HELP[name], labels=(*LABELS, label)
        )
        for outcome, count in report.promised.items():
            promised.add_metric((*self._values, outcome), count)
        yield promised
        steps = HistogramMetricFamily(
            "paceline:step_tokens", METRIC_HELP["step_tokens"], labels=LABELS
        )
        steps.add_metric(self._values, buckets(report.step_tokens), report.step_tokens.total)
        yield steps


class MergedFamilies(Collector):
    """Collects what several collectors do, each family once."""

    def __init__(self, collectors: Iterable[Collector]) -> None:
        self._collectors = collectors

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for collector in self._collectors:
            for family in collector.collect():
                known = families.setdefault(family.name, family)
                if known is not family:
                    known.samples += family.samples
        yield from families.values()


def with_old_names(values: Mapping[str, float], old: Mapping[str, str]) -> dict[str, float]:
    aliases = {name: values[now] for name, now in old.items() if now in values}
    return {**values, **aliases}


def buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Cumulative counts: each bucket has the values at or below its bound."""
    bounds = [*map(str, histogram.bounds), "+Inf"]
    return list(zip(bounds, map(float, accumulate(histogram.counts)), strict=True))


def exposition(collectors: Iterable[Collector], processes: Mapping[str, int]) -> bytes:
    """All metrics: of collectors, and of processes by their prefix."""
    registry = CollectorRegistry(auto_describe=False)
    for one in collectors:
        registry.register(one)
    for prefix, pid in processes.items():
        ProcessCollector(namespace=prefix, pid=partial(int, pid), registry=registry)
    return generate_latest(registry)
