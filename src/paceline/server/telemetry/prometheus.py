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
from paceline.engine.core.figures import WAITING_FOR_GRAMMAR
from paceline.engine.frontend.metrics import GRAMMARS
from paceline.engine.histogram import Histogram
from paceline.engine.report import Report
from paceline.server.telemetry.metric_help import METRIC_HELP

LABELS = ("model_name", "engine")
LORA = "vllm:lora_requests_info"
WAITING = ("num_requests_waiting_by_reason", "reason")
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
            (GaugeMetricFamily, *WAITING, report.waiting_by_reason),
            (CounterMetricFamily, "prompt_tokens_by_source", "source", report.prompt_by_source),
            (CounterMetricFamily, *ACCEPTED, places),
        ):
            family = kind(f"vllm:{name}", METRIC_HELP[name], labels=(*LABELS, label))
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
