"""Requests that concern all replicas: each answers, and the client gets one response."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

CONTROL = frozenset(
    {
        "/pause",
        "/resume",
        "/reset_prefix_cache",
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
    }
)
METRICS = "/metrics"
EXPLAIN = re.compile(r"/requests/.+/explain")


@dataclass(frozen=True, slots=True)
class WholeResponse:
    """What a replica responded."""

    replica: str
    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


Combination = Callable[[Sequence[WholeResponse]], WholeResponse]


def combination_for(path: str) -> Combination | None:
    """How the responses to a path become one; None if one replica is enough."""
    if path in CONTROL:
        return worst
    if path == METRICS:
        return merged
    return best if EXPLAIN.fullmatch(path) else None


def worst(responses: Sequence[WholeResponse]) -> WholeResponse:
    return max(responses, key=lambda one: one.status)


def best(responses: Sequence[WholeResponse]) -> WholeResponse:
    return min(responses, key=lambda one: one.status)


def merged(responses: Sequence[WholeResponse]) -> WholeResponse:
    """The metrics of all replicas, with the replica as a label."""
    registry = CollectorRegistry()
    registry.register(ReplicaMetrics(responses))
    body = generate_latest(registry)
    length = (b"content-length", b"%d" % len(body))
    first = worst(responses)
    headers = [one for one in first.headers if one[0].lower() != length[0]]
    return replace(first, headers=[*headers, length], body=body)


class ReplicaMetrics(Collector):
    """Families of the same name are one family."""

    def __init__(self, responses: Sequence[WholeResponse]) -> None:
        self._families: dict[str, Metric] = {}
        for one in responses:
            for family in text_string_to_metric_families(one.body.decode()):
                samples = [
                    sample._replace(labels={**sample.labels, "replica": one.replica})
                    for sample in family.samples
                ]
                self._families.setdefault(family.name, empty(family)).samples += samples

    def collect(self) -> Iterator[Metric]:
        yield from self._families.values()


def empty(family: Metric) -> Metric:
    return Metric(family.name, family.documentation, family.type, family.unit)
