"""Counts HTTP requests and measures their duration, by route, method and status."""

import re
from collections.abc import Collection, Iterator
from time import monotonic

import numpy as np
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.routing import compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paceline.core.arrays import F64
from paceline.engine.frontend.metrics import LATENCY_S
from paceline.engine.loop.figures import Histogram
from paceline.server.errors import BROKEN
from paceline.server.telemetry.prometheus import METRIC_HELP, buckets

REQUEST_LABELS = ("handler", "method", "status")
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
UNKNOWN_ROUTE, OTHER_METHOD = "none", "other"
DISCONNECTED = 499  # the client was gone before the response began; nginx logs the same number
STATUSES = 1000
OVERFLOW = -1


class HttpMetrics(Collector):
    """Every request counts once, at its end, under the template of its route.

    Clients choose paths and methods, so unknown ones share a label. A process has a slot for each
    combination of labels that it has seen: the labels as a number, and a histogram. If all slots
    are taken, further combinations share the last one. What is collected is the sum over all
    processes.
    """

    SLOTS = 256
    SLOT_CELLS = 1 + Histogram.cells_of(LATENCY_S)
    SIZE = SLOTS * SLOT_CELLS

    def __init__(self, rows: F64 | None = None, row: int = 0) -> None:
        given = np.zeros((1, self.SIZE)) if rows is None else rows
        self._slots = given.reshape(len(given), self.SLOTS, self.SLOT_CELLS)
        self._own = self._slots[row]
        self._seconds: dict[int, Histogram] = {}
        for code in self._own[self._own[:, 0] != 0, 0]:  # of the process that had this row before
            self._add(int(code))
        self._templates = [UNKNOWN_ROUTE]
        self._exact: dict[str, int] = {}
        self._patterns: list[tuple[re.Pattern[str], int]] = []

    def set_routes(self, templates: Collection[str]) -> None:
        """Call it before the first request, with the same templates in all processes."""
        self._templates = [UNKNOWN_ROUTE, *templates]
        self._exact = {one: route for route, one in enumerate(templates, 1)}
        self._patterns = [
            (compile_path(one)[0], route) for one, route in self._exact.items() if "{" in one
        ]

    def ended(self, path: str, method: str, status: int, took_s: float) -> None:
        known = METHODS.index(method) if method in METHODS else len(METHODS)
        code = 1 + status + STATUSES * (known + (1 + len(METHODS)) * self._route(path))
        if code not in self._seconds and len(self._seconds) >= self.SLOTS - 1:
            code = OVERFLOW
        (self._seconds.get(code) or self._add(code)).observe(took_s)

    def _add(self, code: int) -> Histogram:
        slot = self._own[len(self._seconds)]
        slot[0] = code
        self._seconds[code] = histogram = Histogram(LATENCY_S, slot[1:])
        return histogram

    def template(self, path: str) -> str:
        return self._templates[self._route(path)]

    def _route(self, path: str) -> int:
        if (route := self._exact.get(path)) is not None:
            return route
        return next((route for pattern, route in self._patterns if pattern.match(path)), 0)

    def _labels(self, code: int) -> tuple[str, str, str]:
        """The values of `REQUEST_LABELS`."""
        if code == OVERFLOW:
            return UNKNOWN_ROUTE, OTHER_METHOD, "other"
        rest, status = divmod(code - 1, STATUSES)
        route, method = divmod(rest, 1 + len(METHODS))
        return self._templates[route], (*METHODS, OTHER_METHOD)[method], str(status)

    def _totals(self) -> dict[int, F64]:
        """The cells of each combination of labels, added up over the processes."""
        used = self._slots[self._slots[:, :, 0] != 0]  # [slots, SLOT_CELLS]
        found: dict[int, F64] = {}
        for slot in used:
            code = int(slot[0])
            found[code] = slot[1:] + found.get(code, 0.0)
        return found

    def collect(self) -> Iterator[Metric]:
        totals = {
            self._labels(code): Histogram(LATENCY_S, cells)
            for code, cells in self._totals().items()
        }
        name = "http_requests"
        counter = CounterMetricFamily(name, METRIC_HELP[name], labels=REQUEST_LABELS)
        for labels, histogram in totals.items():
            counter.add_metric(labels, histogram.count)
        yield counter
        name = "http_request_duration_seconds"
        family = HistogramMetricFamily(name, METRIC_HELP[name], labels=REQUEST_LABELS)
        for labels, histogram in totals.items():
            family.add_metric(labels, buckets(histogram), histogram.total)
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
