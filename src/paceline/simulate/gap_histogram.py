"""Gaps between tokens, counted in narrow classes: there are too many to keep each."""

from math import exp, log

import numpy as np

from paceline.core.arrays import F64, I64

PER_E = 512  # classes from one length to e times that length: each is 0.2 % wide
LEAST_S, MOST_S = 1e-7, 1e6
CLASSES = int(PER_E * log(MOST_S / LEAST_S)) + 2
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
            place = (np.log(np.clip(gaps, LEAST_S, MOST_S)) - log(LEAST_S)) * PER_E
            self._counts += np.bincount(place.astype(np.int64), minlength=CLASSES)
            self.most_s = max(self.most_s, float(gaps.max()))

    @property
    def counts(self) -> I64:  # [classes]
        self._count()
        return self._counts

    def percentile_s(self, percent: float) -> float:
        """The middle of the class in which so many percent of the gaps are no longer."""
        reached = np.cumsum(self.counts)
        if not reached[-1]:
            return 0.0
        place = int(np.searchsorted(reached, percent / 100 * reached[-1]))
        return min(LEAST_S * exp((place + 0.5) / PER_E), self.most_s)
