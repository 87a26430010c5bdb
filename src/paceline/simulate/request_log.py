"""What happened to each request, in columns."""

from collections.abc import Sequence
from math import isfinite, nan

import numpy as np

from paceline.core.arrays import F64, I32
from paceline.core.errors import PacelineError, QueueFull
from paceline.core.plan import Ended
from paceline.engine.core.messages import Delivery
from paceline.simulate.gap_histogram import GapHistogram
from paceline.simulate.requests import SimulatedRequest


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
    """

    def __init__(self, requests: Sequence[SimulatedRequest]) -> None:
        count = len(requests)
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
        if not isfinite(gaps.sum()):
            is_first = np.isnan(gaps)
            self.first[rows[is_first]] = time
            gaps = gaps[~is_first]
        self.gaps.add(gaps)
        return new

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
