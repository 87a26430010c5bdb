"""What happened to each request, in columns, and a histogram of the gaps between tokens."""

from collections.abc import Sequence
from math import exp, inf, isfinite, log, nan

import numpy as np

from paceline.core.arrays import F64, I32, I64, Bool
from paceline.core.errors import PacelineError, QueueFull
from paceline.core.plan import Ended
from paceline.core.settings.features import ServiceConfig
from paceline.engine.loop.messages import Delivery
from paceline.sched.service.promises import LATE_GAPS
from paceline.simulator.requests import SimulatedRequest

PER_E = 512  # classes from one length to e times that length: each is 0.2 % wide
LEAST_S, MOST_S = 1e-7, 1e6
CLASSES = int(PER_E * log(MOST_S / LEAST_S)) + 2
NOTHING_PROMISED = ServiceConfig()
PENDING = 4096  # calls whose gaps are counted together


class GapHistogram:
    """Counts gaps. Percentiles are exact to 0.2 %, the maximum is exact."""

    def __init__(self) -> None:
        self.most_s = 0.0
        self._counts: I64 = np.zeros(CLASSES, np.int64)
        self._pending: list[F64] = []

    def add(self, gaps: F64) -> None:
        self._pending.append(gaps)
        if len(self._pending) >= PENDING:
            self._count()

    def _count(self) -> None:
        if not self._pending:
            return
        gaps = np.concatenate(self._pending)
        self._pending = []
        if len(gaps):
            index = (np.log(np.clip(gaps, LEAST_S, MOST_S)) - log(LEAST_S)) * PER_E
            self._counts += np.bincount(index.astype(np.int64), minlength=CLASSES)
            self.most_s = max(self.most_s, float(gaps.max()))

    @property
    def counts(self) -> I64:  # [classes]
        self._count()
        return self._counts

    def percentile_s(self, percent: float) -> float:
        """The middle of the class in which so many percent of the gaps are no longer."""
        reached = np.cumsum(self.counts)
        total = float(reached[-1])
        if not total:
            return 0.0
        index = int(np.searchsorted(reached, percent / 100 * total))
        return min(LEAST_S * exp((index + 0.5) / PER_E), self.most_s)


class RequestLog:
    """One row per request of the load, by its number; times in seconds on the virtual clock.

    arrival     when its client sent it; NaN: it was never sent
    first, last when the client had its first and its latest token; NaN: none yet
    ended       when the client knew its end
    longest     the longest gap between two pieces
    outcome     how it ended: "length", "abort", "timeout", "refused", ...; "": it is open
    message     of requests that were refused or timed out, by number
    queued      seconds from arrival to the first admission
    tokens, cached, preemptions   generated, prompt tokens found in the cache, times preempted
    pieces      times that its client got tokens: one at a time, or more where drafts were right
    prompts     prompt tokens
    gaps        between pieces of all requests
    ttft_s, itl_s   what was promised of the first token and between two tokens; inf: nothing
    late        gaps that were longer than promised
    """

    def __init__(
        self, requests: Sequence[SimulatedRequest], promised: ServiceConfig = NOTHING_PROMISED
    ) -> None:
        count = len(requests)
        self.ttft_s: F64 = np.full(count, inf)
        self.itl_s: F64 = np.full(count, inf)
        for number, one in enumerate(requests):
            self.ttft_s[number] = promised.ttft_s(one.tenant, one.deadline_s)
            self.itl_s[number] = promised.itl_s(one.tenant, one.token_deadline_s)
        self.late: I32 = np.zeros(count, np.int32)
        self.arrival: F64 = np.full(count, nan)
        self.first: F64 = np.full(count, nan)
        self.last: F64 = np.full(count, nan)
        self.ended: F64 = np.full(count, nan)
        self.queued: F64 = np.full(count, nan)
        self.longest: F64 = np.zeros(count)
        self.tokens: I32 = np.zeros(count, np.int32)
        self.pieces: I32 = np.zeros(count, np.int32)
        self.cached: I32 = np.zeros(count, np.int32)
        self.preemptions: I32 = np.zeros(count, np.int32)
        self.prompts: I32 = np.array([one.input_len for one in requests], np.int32)
        self.outcome = [""] * count
        self.message: dict[int, str] = {}
        self.gaps = GapHistogram()

    def delivered(self, delivery: Delivery, time: float) -> int:
        """The client has these tokens. Returns their number."""
        rows, count = delivery.handle, delivery.count
        if not len(rows):
            return 0
        new = int(count.sum())
        if np.count_nonzero(count) < len(count):
            rows, count = rows[count > 0], count[count > 0]
        gaps = time - self.last[rows]  # NaN before the first piece
        self.last[rows] = time
        self.tokens[rows] += count
        self.pieces[rows] += 1
        self.longest[rows] = np.fmax(self.longest[rows], gaps)
        self.late[rows] += gaps > self.itl_s[rows]
        if not isfinite(gaps.sum()):
            is_first = np.isnan(gaps)
            self.first[rows[is_first]] = time
            gaps = gaps[~is_first]
        self.gaps.add(gaps)
        return new

    @property
    def promises(self) -> bool:
        """Was anything promised to any request?"""
        return bool(np.isfinite(self.ttft_s).any() or np.isfinite(self.itl_s).any())

    @property
    def kept(self) -> Bool:  # [requests]
        """Which requests got what was promised: the first token, and all but a hundredth of the
        gaps."""
        in_time = self.first - self.arrival <= self.ttft_s
        return in_time & (self.late * LATE_GAPS <= np.maximum(self.pieces - 1, 0))

    def close(self, number: int, ended: Ended, time: float) -> None:
        self.ended[number] = time
        self.outcome[number] = ended.finish.value
        self.queued[number] = ended.timings.queue_s
        self.cached[number] = ended.cached
        self.preemptions[number] = ended.timings.preemptions
        if ended.message:
            self.message[number] = ended.message

    def refuse(self, number: int, error: PacelineError, time: float) -> None:
        self.ended[number] = time
        self.outcome[number] = "refused" if isinstance(error, QueueFull) else "impossible"
        self.message[number] = str(error)
