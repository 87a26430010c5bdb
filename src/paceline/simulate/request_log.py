"""What happened to each request, in columns."""

from collections.abc import Sequence
from math import nan

import numpy as np

from paceline.core.arrays import F64, I32, I64
from paceline.core.plan import Ended
from paceline.engine.core.messages import Delivery
from paceline.simulate.gap_histogram import GapHistogram
from paceline.simulate.requests import SimulatedRequest


class RequestLog:
    """One row per request of the load, by its number; times in seconds on the virtual clock.

    arrival     when its client sent it; NaN: it was never sent
    first, last when the client had its first and its latest token; NaN: none yet
    ended       when the client knew its end
    longest     the longest gap between two of its tokens
    outcome     how it ended: "length", "abort", "timeout", "refused", ...; "": it is open
    message     of requests that were refused or timed out, by number
    queued      seconds from arrival to the first admission
    tokens, cached, preemptions   generated, prompt tokens found in the cache, times preempted
    prompts     prompt tokens
    gaps        between tokens of all requests
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
        self.cached: I32 = np.zeros(count, np.int32)
        self.preemptions: I32 = np.zeros(count, np.int32)
        self.prompts: I32 = np.array([one.input_len for one in requests], np.int32)
        self.outcome = [""] * count
        self.message: dict[int, str] = {}
        self.gaps = GapHistogram()

    def delivered(self, delivery: Delivery, time: float) -> int:
        """The client has these tokens. Returns their number."""
        rows = delivery.handle
        if not delivery.count.all():
            rows = rows[delivery.count > 0]
        if not len(rows):
            return 0
        last = self.last[rows]
        first = np.isnan(last)
        if first.any():
            self.first[rows[first]] = time
            again = rows[~first]
            gaps = time - last[~first]
        else:
            again, gaps = rows, time - last
        self.last[rows] = time
        self.tokens[rows] += 1
        if len(again):
            self.longest[again] = np.maximum(self.longest[again], gaps)
            self.gaps.add(gaps)
        return len(rows)

    def repeated(self, rows: I64, times: F64) -> None:
        """The clients of these requests have a token at each of these times."""
        gaps = times[0] - self.last[rows]
        self.gaps.add(gaps)
        longest = np.maximum(self.longest[rows], gaps)
        if len(times) > 1:
            between = times[1:] - times[:-1]
            self.gaps.add(between, len(rows))
            longest = np.maximum(longest, between.max())
        self.longest[rows] = longest
        self.last[rows] = times[-1]
        self.tokens[rows] += len(times)

    def close(self, number: int, ended: Ended, time: float) -> None:
        self.ended[number] = time
        self.outcome[number] = ended.finish.value
        self.queued[number] = ended.timings.queue_s
        self.cached[number] = ended.cached
        self.preemptions[number] = ended.timings.preemptions
        if ended.message:
            self.message[number] = ended.message

    def refuse(self, number: int, outcome: str, message: str, time: float) -> None:
        self.ended[number] = time
        self.outcome[number] = outcome
        self.message[number] = message
