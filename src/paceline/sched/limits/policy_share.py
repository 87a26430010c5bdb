"""The step's budget as the policy splits it."""

import numpy as np

from paceline.core.arrays import I32
from paceline.core.config import Config
from paceline.sched.limits.limit import Limit, LimitView, Sharing
from paceline.sched.limits.rows import WantedRows


class PolicyShare(Limit):
    """The policy shares the budget among residents. An arrival gets all that is left for it,
    which is what the policy calls its room."""

    def __init__(self, policy: Sharing) -> None:
        self._policy = policy

    @classmethod
    def create(cls, config: Config, view: LimitView) -> "PolicyShare":
        return cls(view.policy)

    def clip(self, rows: WantedRows) -> I32:
        if rows.arriving:
            return np.minimum(rows.want, rows.left)
        return self._policy.share(rows.slot, rows.want, rows.left)
