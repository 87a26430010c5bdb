"""Prompts that are not cut: `enable_chunked_prefill` off."""

import numpy as np

from paceline.core.arrays import I32
from paceline.core.config import Config
from paceline.sched.limits.limit import Limit, LimitView
from paceline.sched.limits.rows import WantedRows


class WholePrompts(Limit):
    """A sequence joins with its whole prompt or not at all. What a resident lacks may be cut."""

    @classmethod
    def create(cls, config: Config, view: LimitView) -> "WholePrompts | None":
        return None if config.step.enable_chunked_prefill else cls()

    def clip(self, rows: WantedRows) -> I32:
        return np.where(rows.want > rows.left, 0, rows.want) if rows.arriving else rows.want
