"""The last position that is worth computing."""

import numpy as np

from paceline.core.arrays import I32
from paceline.core.config import Config
from paceline.sched.limits.limit import Limit, LimitView
from paceline.sched.limits.rows import WantedRows


class ModelLength(Limit):
    """No row computes a position whose sample would lie past the length of its sequence."""

    @classmethod
    def create(cls, config: Config, view: LimitView) -> "ModelLength":
        return cls()

    def clip(self, rows: WantedRows) -> I32:
        return np.minimum(rows.want, np.maximum(rows.limit - 1 - rows.start, 0))
