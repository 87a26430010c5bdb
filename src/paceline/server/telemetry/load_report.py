"""The load of the engines, in a header that routers read."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from time import monotonic

import msgspec

from paceline.engine.api import Report

FRESH_S = 0.1  # a report this old is sent again, so that many requests do not ask the core
USAGE = "kv_cache_usage_perc"
NAMES = (USAGE, "num_requests_waiting")  # of gauges; routers know them from vLLM


class LoadReport:
    """Requests that want a report at the same time share one question to the engine."""

    def __init__(self, reports: Callable[[], Awaitable[Sequence[Report]]]) -> None:
        self._reports = reports
        self._lock = asyncio.Lock()
        self._named: Mapping[str, float] = {}
        self._until = 0.0  # when the figures are too old

    async def header(self, kind: str) -> bytes:
        """The value of `endpoint-load-metrics`, as TEXT or JSON; empty for any other format."""
        if kind not in ("TEXT", "JSON"):
            return b""
        async with self._lock:
            if monotonic() >= self._until:
                gauges = [report.gauges for report in await self._reports()]
                summed = {name: float(sum(one[name] for one in gauges)) for name in NAMES}
                self._named = summed | {USAGE: summed[USAGE] / len(gauges)}
                self._until = monotonic() + FRESH_S
        if kind == "JSON":
            return b"JSON " + msgspec.json.encode({"named_metrics": self._named})
        named = (f"named_metrics.{name}={value}" for name, value in self._named.items())
        return f"TEXT {', '.join(named)}".encode()
