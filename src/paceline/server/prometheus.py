"""The engine's counts as Prometheus reads them, under vLLM's names."""

from collections.abc import Iterator, Mapping
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from paceline.engine.metrics import Histogram, Report

LABELS = ("model_name", "engine")
# Names that routers still look for, beside those that took their place.
OLD_GAUGES = {"gpu_cache_usage_perc": "kv_cache_usage_perc"}
OLD_COUNTERS = {
    "gpu_prefix_cache_queries": "prefix_cache_queries",
    "gpu_prefix_cache_hits": "prefix_cache_hits",
}


class Exposition(Collector):
    """One report; every family has the labels of the model and of the engine."""

    def __init__(self, report: Report, model: str) -> None:
        self._report, self._values = report, (model, "0")

    def collect(self) -> Iterator[Metric]:
        report = self._report
        for name, value in with_old_names(report.gauges, OLD_GAUGES).items():
            gauge = GaugeMetricFamily(f"vllm:{name}", words(name), labels=LABELS)
            gauge.add_metric(self._values, value)
            yield gauge
        for name, value in with_old_names(report.counters, OLD_COUNTERS).items():
            counter = CounterMetricFamily(f"vllm:{name}", words(name), labels=LABELS)
            counter.add_metric(self._values, value)
            yield counter
        for name, histogram in report.histograms.items():
            family = HistogramMetricFamily(f"vllm:{name}", words(name), labels=LABELS)
            family.add_metric(self._values, buckets(histogram), histogram.total)
            yield family
        yield from self._labelled()

    def _labelled(self) -> Iterator[Metric]:
        report = self._report
        name = "request_success"
        labels = (*LABELS, "finished_reason")
        success = CounterMetricFamily(f"vllm:{name}", "choices that ended", labels=labels)
        for reason, count in report.request_success.items():
            success.add_metric((*self._values, reason), count)
        yield success
        name = "num_requests_waiting_by_reason"
        waiting = GaugeMetricFamily(f"vllm:{name}", words(name), labels=(*LABELS, "reason"))
        for reason, count in report.waiting_by_reason.items():
            waiting.add_metric((*self._values, reason), count)
        yield waiting
        config = {name: str(value) for name, value in report.cache_config.items()}
        cache = GaugeMetricFamily(
            "vllm:cache_config_info", "settings of the KV cache", labels=("engine", *config)
        )
        cache.add_metric(("0", *config.values()), 1)
        yield cache


def words(name: str) -> str:
    return name.replace("_", " ")


def with_old_names(values: Mapping[str, float], old: Mapping[str, str]) -> dict[str, float]:
    aliases = {name: values[now] for name, now in old.items() if now in values}
    return {**values, **aliases}


def buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Prometheus counts in each bucket what lies at or below its bound."""
    bounds = [*map(str, histogram.bounds), "+Inf"]
    return list(zip(bounds, map(float, accumulate(histogram.counts)), strict=True))


def exposition(report: Report, model: str) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Exposition(report, model))
    return generate_latest(registry)
