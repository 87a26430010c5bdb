"""Figures of all processes of a server in shared memory, and the load header for routers."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from hashlib import blake2b
from math import ceil
from mmap import mmap
from tempfile import TemporaryFile
from time import monotonic

import msgspec
import numpy as np

from paceline.core.arrays import F64
from paceline.engine.api import Report
from paceline.engine.frontend.metrics import Metrics
from paceline.server.telemetry.http_metrics import HttpMetrics

REMEMBERED_IDS = 4096
REMEMBERED_ENDS = 64
LONGEST_WAIT_S = 60
FRESH_S = 0.1  # a report this old is sent again, so that many requests do not ask the core
USAGE = "kv_cache_usage_perc"
NAMES = (USAGE, "num_requests_waiting")  # of gauges; routers know them from vLLM


class RecentIds:
    """A process writes the digests of its own ids, the oldest one first replaced.

    It writes before it reads, so that of two processes with the same id at least one sees it. If
    both do, both choose another name.
    """

    SIZE = 1 + REMEMBERED_IDS  # the number of ids so far, and the digests of the latest

    def __init__(self, rows: F64, row: int) -> None:
        self._rows, self._row = rows.view(np.int64), row  # [processes, SIZE]

    def claim(self, request_id: str) -> bool:
        """Remember an id. False if another process has had it recently."""
        if len(self._rows) == 1:
            return True
        digest = int.from_bytes(blake2b(request_id.encode(), digest_size=8).digest(), signed=True)
        own = self._rows[self._row]
        own[1 + own[0] % REMEMBERED_IDS] = digest
        own[0] += 1
        found = (self._rows[:, 1:] == digest).any(axis=1)
        found[self._row] = False
        return not found.any()


class RequestRate:
    """The rate at which requests end, from the times of the latest ends of all processes.

    It is measured up to now, not up to the latest end, so that it falls while no request ends.
    """

    SIZE = 1 + REMEMBERED_ENDS  # the number of ends so far, and the times of the latest

    def __init__(
        self, clock: Callable[[], float] = monotonic, rows: F64 | None = None, row: int = 0
    ) -> None:
        self._clock = clock
        self._rows = np.zeros((1, self.SIZE)) if rows is None else rows  # [processes, SIZE]
        self._own = self._rows[row]

    def ended(self) -> None:
        self._own[1 + int(self._own[0]) % REMEMBERED_ENDS] = self._clock()
        self._own[0] += 1

    def wait_s(self, ahead: int) -> int:
        """Whole seconds in which `ahead` requests end, at least one and at most a minute."""
        times = self._rows[:, 1:]
        latest = np.sort(times[times > 0.0])[-REMEMBERED_ENDS:]
        if not len(latest):
            return 1
        each = (self._clock() - float(latest[0])) / len(latest)
        return min(max(ceil(each * ahead), 1), LONGEST_WAIT_S)


# The cells of a row, in this order. Those of `Metrics` follow, once for each engine.
SECTIONS = {
    "gauges": 5,
    "core": 2,  # requests of all front ends that the core has; deaths of the core
    "ends": RequestRate.SIZE,
    "ids": RecentIds.SIZE,
    "http": HttpMetrics.SIZE,
}
REQUESTS, CONNECTIONS, ACCEPTS, PID, FAILED_AT = range(SECTIONS["gauges"])


class Scoreboard:
    """A row of numbers for each process. A process writes only its own row, and reads all.

    The successor of a process continues its row, so counters of the server never fall. With several
    front ends the last row belongs to the owner of the core. Without `cells` there is one row.
    """

    def __init__(self, cells: F64 | None = None, row: int = 0) -> None:
        self._cells = np.zeros((1, width_of(1))) if cells is None else cells  # [processes, width]
        self._row = row
        self.rate = RequestRate(rows=self.section("ends"), row=row)
        self.ids = RecentIds(self.section("ids"), row)
        self.http_metrics = HttpMetrics(self.section("http"), row)
        self._gauges = self.section("gauges")
        self._gauges[row] = 0.0
        self._gauges[row, PID] = os.getpid()

    @property
    def is_shared(self) -> bool:
        """Whether there are other processes."""
        return len(self._cells) > 1

    def section(self, name: str) -> F64:
        """The cells of one kind, of all processes."""
        names = list(SECTIONS)
        begin = sum(SECTIONS[one] for one in names[: names.index(name)])
        return self._cells[:, begin : begin + SECTIONS[name]]

    @property
    def metrics(self) -> F64:
        """The metrics of all processes and engines: [processes, engines, cells]."""
        begin = width_of(0)
        return self._cells[:, begin:].reshape(len(self._cells), -1, Metrics.SIZE)

    @property
    def own_metrics(self) -> tuple[Metrics, ...]:
        """The metrics of this process, for each engine."""
        return tuple(map(Metrics, self.metrics[self._row]))

    def own(self, name: str) -> F64:
        """The cells of one kind, of this process."""
        return self.section(name)[self._row]

    def set_requests(self, requests: int) -> None:
        self._gauges[self._row, REQUESTS] = requests

    def set_connections(self, connections: int) -> None:
        self._gauges[self._row, CONNECTIONS] = connections

    def set_accepting(self, accepts: bool) -> None:
        """Whether this process accepts connections."""
        self._gauges[self._row, ACCEPTS] = accepts

    def set_failure(self, since_s: float | None) -> None:
        """Seconds since a request of this process last ended with an error."""
        if since_s is not None:
            self._gauges[self._row, FAILED_AT] = monotonic() - since_s

    def clear_gauges(self, row: int) -> None:
        """The process of a row is gone."""
        self._gauges[row] = 0.0

    @property
    def requests(self) -> int:
        """Open requests of the server."""
        return int(self._gauges[:, REQUESTS].sum())

    @property
    def connections_elsewhere(self) -> int:
        """Open connections of the other processes."""
        connections = self._gauges[:, CONNECTIONS]
        return int(connections.sum() - connections[self._row])

    @property
    def connections_ahead(self) -> int:
        """Connections that this process has beyond those of the process that has fewest."""
        connections = self._gauges[:, CONNECTIONS]
        accepting = connections[self._gauges[:, ACCEPTS] > 0]
        return int(connections[self._row] - accepting.min()) if len(accepting) else 0

    @property
    def last_failure_s(self) -> float | None:
        """Seconds since a request of the server last ended with an error; None if none has."""
        latest = float(self._gauges[:, FAILED_AT].max())
        return monotonic() - latest if latest else None

    @property
    def processes(self) -> dict[str, int]:
        """The processes of the server by the prefix of their metrics.

        With several front ends, the process without a prefix is the owner of the core.
        """
        *front_ends, owner = self._gauges[:, PID].astype(int).tolist()
        numbered = {f"paceline_front_end_{row}": pid for row, pid in enumerate(front_ends) if pid}
        return {"": owner, **numbered}


def width_of(engines: int) -> int:
    """Cells of a row."""
    return sum(SECTIONS.values()) + engines * Metrics.SIZE


def shared_memory(processes: int, engines: int = 1) -> int:
    """A file without a name for the rows of several processes; returns its descriptor.

    On Linux it is in memory: a process that writes to a mapped file on a full disk is killed.
    """
    if sys.platform == "linux":
        file = os.memfd_create("paceline")
    else:
        with TemporaryFile() as temporary:
            file = os.dup(temporary.fileno())
    os.truncate(file, processes * width_of(engines) * 8)
    return file


def shared_board(file: int, row: int, engines: int = 1) -> Scoreboard:
    """The board of several processes in one of them. A negative row counts from the end."""
    cells = np.frombuffer(mmap(file, 0), np.float64).reshape(-1, width_of(engines))
    return Scoreboard(cells, row % len(cells))


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
