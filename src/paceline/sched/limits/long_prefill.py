"""The longest row: `long_prefill_token_threshold`."""

import numpy as np

from paceline.core.arrays import I32
from paceline.core.config import Config
from paceline.sched.limits.limit import Limit, LimitView
from paceline.sched.limits.rows import WantedRows


class LongPrefill(Limit):
    """A row has at most `threshold` positions."""

    def __init__(self, threshold: int) -> None:
        self._threshold = threshold

    @classmethod
    def create(cls, config: Config, view: LimitView) -> "LongPrefill | None":
        threshold = config.step.long_prefill_token_threshold
        return cls(threshold) if threshold else None

    def clip(self, rows: WantedRows) -> I32:
        return np.minimum(rows.want, self._threshold)
