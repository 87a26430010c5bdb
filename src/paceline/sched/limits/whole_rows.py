"""Rows that are not cut, except for the first one of a step."""

import numpy as np

from paceline.core.arrays import I32
from paceline.core.config import Config
from paceline.sched.limits.limit import Limit, LimitView
from paceline.sched.limits.rows import WantedRows


class WholeRows(Limit):
    """Rows are served in order as long as all of a row fits; only a step's first row is cut."""

    @classmethod
    def create(cls, config: Config, view: LimitView) -> "WholeRows":
        return cls()

    def clip(self, rows: WantedRows) -> I32:
        want, left = rows.want, rows.left
        total = np.cumsum(want, dtype=np.int64)
        if not len(want) or total[-1] <= left:
            return want
        granted = np.where(total <= left, want, 0)
        if rows.first and not granted.any():
            first = int(np.flatnonzero(want)[0])
            granted[first] = min(int(want[first]), left)
        return granted
