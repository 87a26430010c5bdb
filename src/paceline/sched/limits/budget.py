"""The positions of a step: `max_num_batched_tokens`."""

from paceline.core.arrays import I32
from paceline.core.config import Config
from paceline.sched.limits.limit import Limit, LimitView
from paceline.sched.limits.rows import WantedRows
from paceline.sched.limits.split import within_budget


class Budget(Limit):
    """Rows are served in order until the budget is spent; the last one served may be cut."""

    @classmethod
    def create(cls, config: Config, view: LimitView) -> "Budget":
        return cls()

    def clip(self, rows: WantedRows) -> I32:
        return within_budget(rows.want, rows.left)
