"""The step's budget as the policy splits it."""

import numpy as np

from paceline.core.arrays import I32
from paceline.core.config import Config
from paceline.sched.limits.limit import Limit, LimitView, Sharing
from paceline.sched.limits.rows import WantedRows
from paceline.sched.plugin_checks import check_share
from paceline.sched.policy import Policy


class PolicyShare(Limit):
    """The policy shares the budget among residents. An arrival gets all that is left for it,
    which is what the policy calls its room."""

    def __init__(self, policy: Sharing) -> None:
        self._policy = policy
        self._is_default = type(policy).share is Policy.share

    @classmethod
    def create(cls, config: Config, view: LimitView) -> "PolicyShare":
        return cls(view.policy)

    def clip(self, rows: WantedRows) -> I32:
        if rows.arriving:
            return rows.want if rows.want[0] <= rows.left else np.minimum(rows.want, rows.left)
        granted = self._policy.share(rows.slot, rows.want, rows.left)
        if not self._is_default:
            check_share(self._policy, rows, granted)
        return granted
