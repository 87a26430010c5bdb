"""Counts HTTP requests and measures their duration, by route, method and status."""

import re
from collections import Counter
from collections.abc import Collection, Iterator
from time import monotonic

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.routing import compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paceline.engine.frontend.histogram import Histogram
from paceline.engine.frontend.metrics import LATENCY_S
from paceline.server.errors import BROKEN
from paceline.server.telemetry.metric_help import METRIC_HELP
from paceline.server.telemetry.prometheus import buckets

REQUEST_LABELS = ("handler", "method", "status")
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
UNKNOWN_ROUTE, OTHER_METHOD = "none", "other"
DISCONNECTED = 499  # the client was gone before the response began; nginx logs the same number

RequestKey = tuple[str, ...]  # the values of `REQUEST_LABELS`


class HttpMetrics(Collector):
    """Every request counts once, at its end, under the template of its route.

    Clients choose paths and methods, so unknown ones share a label.
    """

    def __init__(self) -> None:
        self._exact: frozenset[str] = frozenset()
        self._patterns: list[tuple[re.Pattern[str], str]] = []
        self._counts: Counter[RequestKey] = Counter()
        self._seconds: dict[RequestKey, Histogram] = {}

    def set_routes(self, templates: Collection[str]) -> None:
        self._exact = frozenset(templates)
        self._patterns = [(compile_path(one)[0], one) for one in templates if "{" in one]

    def ended(self, path: str, method: str, status: int, took_s: float) -> None:
        known = method if method in METHODS else OTHER_METHOD
        key = self.template(path), known, str(status)
        self._counts[key] += 1
        self._seconds.setdefault(key, Histogram(LATENCY_S)).observe(took_s)

    def template(self, path: str) -> str:
        if path in self._exact:
            return path
        found = (one for pattern, one in self._patterns if pattern.match(path))
        return next(found, UNKNOWN_ROUTE)

    def collect(self) -> Iterator[Metric]:
        name = "http_requests"
        counter = CounterMetricFamily(name, METRIC_HELP[name], labels=REQUEST_LABELS)
        for key, count in self._counts.items():
            counter.add_metric(key, count)
        yield counter
        name = "http_request_duration_seconds"
        family = HistogramMetricFamily(name, METRIC_HELP[name], labels=REQUEST_LABELS)
        for key, histogram in self._seconds.items():
            family.add_metric(key, buckets(histogram), histogram.total)
        yield family


class MeasuredRequests:
    """Middleware that reports each request to `HttpMetrics`, whatever ends it."""

    def __init__(self, app: ASGIApp, metrics: HttpMetrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, begun = DISCONNECTED, monotonic()

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noted)
        except Exception:
            status = BROKEN if status == DISCONNECTED else status  # it is sent outside of here
            raise
        finally:
            path, method = scope["path"], scope["method"]
            self._metrics.ended(path, method, status, monotonic() - begun)
