"""What happened to each request, in columns."""

from collections.abc import Sequence
from math import nan

import numpy as np

from paceline.core.arrays import F64, I32, I64
from paceline.core.errors import PacelineError, QueueFull
from paceline.core.plan import Ended
from paceline.engine.core.messages import Delivery
from paceline.sched.course import Course
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
        if not count.all():
            rows, count = rows[count > 0], count[count > 0]
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
        self.tokens[rows] += count
        self.pieces[rows] += 1
        if len(again):
            self.longest[again] = np.maximum(self.longest[again], gaps)
            self.gaps.add(gaps)
        return int(count.sum())

    def repeated(self, course: Course, times: F64) -> int:
        """The clients have the tokens of the first turns of a course, at these times. Returns
        their number."""
        rows, first = course.handle, course.first_turn
        end = np.minimum(course.last_turn + 1, len(times))
        if (late := first >= len(times)).any():  # it has just joined
            rows, first, end = rows[~late], first[~late], end[~late]
        if not len(rows):
            return 0
        gaps = times[first] - self.last[rows]
        longest = np.fmax(self.longest[rows], gaps)
        is_new = np.isnan(gaps)
        if is_new.any():
            self.first[rows[is_new]] = times[first[is_new]]
            gaps = gaps[~is_new]
        self.gaps.add(gaps)
        if len(times) > 1:
            between = times[1:] - times[:-1]
            self.gaps.add(between, between_rows(first, end, len(times)))
            longest = np.maximum(longest, longest_within(between, first, end))
        self.longest[rows] = longest
        self.last[rows] = times[end - 1]
        more = end - first
        self.tokens[rows] += more
        self.pieces[rows] += more
        return int(more.sum())

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


def between_rows(first: I32, end: I32, turns: int) -> I64:  # [turns - 1]
    """How many rows have a token in each turn but the first, and one in the turn before it."""
    begins, ends = (
        np.bincount(first + 1, minlength=turns + 1),
        np.bincount(end, minlength=turns + 1),
    )
    found: I64 = np.cumsum(begins - ends)[1:turns]
    return found


def longest_within(between: F64, first: I32, end: I32) -> F64:
    """The longest gap of each row, whose tokens come in the turns from `first[i]` to before
    `end[i]`; 0 if it has only one."""
    found: F64 = np.concatenate([[0.0], np.maximum.accumulate(between)])[end - 1]
    for row in np.flatnonzero(first).tolist():
        found[row] = between[first[row] : end[row] - 1].max(initial=0.0)
    return found
