"""How the queue, the batch and the blocks develop over time, in a bounded number of points."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from paceline.core.arrays import F64
from paceline.sched.view import SchedulerView

POINTS = 1024
FIRST_WIDTH_S = 0.25


class Occupancy(NamedTuple):
    """How busy a scheduler is."""

    running: int  # sequences
    waiting: int  # requests
    used_blocks: int

    @staticmethod
    def of(view: SchedulerView) -> "Occupancy":
        pool = view.pools[0]
        return Occupancy(len(view.table.order), view.queued, pool.size - pool.free)


class Timeline:
    """The largest number of each span of time, and the tokens generated in it.

    A span inside a long step has the numbers from before it. When there are more than `POINTS`
    spans, each two become one.
    """

    NAMES = ("running", "waiting", "used_blocks")

    def __init__(self) -> None:
        self.width_s = FIRST_WIDTH_S
        self._most: F64 = np.zeros((len(self.NAMES), POINTS))
        self._latest: F64 = np.full((len(self.NAMES), POINTS), np.nan)  # NaN: nothing was added
        self._tokens: F64 = np.zeros(POINTS)
        self._end = 0  # spans that have begun

    @staticmethod
    def of_all(parts: "Sequence[Timeline]") -> "Timeline":
        """What several servers do together; of each span, the sum of their largest numbers."""
        total = Timeline()
        total.width_s = max(one.width_s for one in parts)
        total._latest[:] = 0  # each span has its numbers
        for one in parts:
            while one.width_s < total.width_s:
                one._halve()
            total._most += one._largest
            total._tokens += one._tokens
            total._end = max(total._end, one._end)
        return total

    def add(self, time: float, point: Occupancy) -> None:
        """Points are added in the order of time."""
        at = self._index(time)
        self._most[:, at] = np.maximum(self._most[:, at], point)
        self._latest[:, at] = point

    def add_tokens_at(self, time: float, count: int) -> None:
        self._tokens[self._index(time)] += count

    def _index(self, time: float) -> int:
        while time >= POINTS * self.width_s:
            self._halve()
        index = int(time / self.width_s)
        self._end = max(self._end, index + 1)
        return index

    def _halve(self) -> None:
        pairs = self._most.reshape(len(self.NAMES), POINTS // 2, 2).max(axis=2)
        tokens = self._tokens.reshape(POINTS // 2, 2).sum(axis=1)
        first, second = self._latest[:, ::2], self._latest[:, 1::2]
        latest = np.where(np.isnan(second), first, second)
        self._most[:], self._tokens[:], self._latest[:] = 0, 0, np.nan
        self._most[:, : POINTS // 2], self._tokens[: POINTS // 2] = pairs, tokens
        self._latest[:, : POINTS // 2] = latest
        self.width_s *= 2
        self._end = (self._end + 1) // 2

    @property
    def _largest(self) -> F64:
        """The largest numbers; those from before where nothing was added."""
        is_known = ~np.isnan(self._latest[0])
        before = np.maximum.accumulate(np.where(is_known, np.arange(POINTS), 0))
        found: F64 = np.where(is_known, self._most, np.nan_to_num(self._latest[:, before]))
        return found

    def to_dict(self) -> dict[str, list[float]]:
        """Columns: seconds at which spans begin, the largest numbers, and tokens per second."""
        end = self._end
        found = {"time_s": (np.arange(end) * self.width_s).tolist()}
        for name, column in zip(self.NAMES, self._largest, strict=True):
            found[name] = column[:end].tolist()
        found["tokens_per_s"] = (self._tokens[:end] / self.width_s).tolist()
        return found
