"""The rows of a result, and how features take part in committing them."""

from dataclasses import dataclass, fields

import numpy as np

from paceline.core.arrays import I32, Bool, Index, every
from paceline.core.plan import Ended, Plan, Rows, StepResult
from paceline.sched.components import SchedulerComponents


@dataclass(slots=True, eq=False)
class ResultRows:
    """The rows of a step whose sequence still has its slot, and what they yielded.

    count      tokens that are appended: those yielded, and those that are forced behind them,
               without what a limit, a stop token or a feature cuts off
    reported   of those, the tokens that clients get with this step; None: all of them
    """

    plan: Plan  # of the whole step, as is `result`
    result: StepResult
    rows: Rows
    origin: Index | None  # row of the plan and of the result; None: all are here, in order
    ids: I32  # [rows, 1 + most drafts]
    yielded: I32  # [rows]; tokens that the device sampled
    count: I32  # [rows]
    reported: I32 | None = None  # [rows]

    @staticmethod
    def of(plan: Plan, result: StepResult, alive: Bool) -> "ResultRows":
        """The rows of a plan that are `alive`."""
        rows, count = plan.rows, result.count
        if every(alive):
            return ResultRows(plan, result, rows, None, result.ids, count, count)
        rows = Rows(*(getattr(rows, column.name)[alive] for column in fields(Rows)))
        origin, count = np.flatnonzero(alive), count[alive]
        return ResultRows(plan, result, rows, origin, result.ids[alive], count, count)

    def source(self, row: int) -> int:
        """The row of the result that belongs to a row of these."""
        return row if self.origin is None else int(self.origin[row])


class ResultHook:
    """The part of one feature in the commit of a step. A subclass defines the moments it needs,
    in the order in which they come; each is called for every step that is not steady."""

    def __init__(self, components: SchedulerComponents) -> None:
        self._state = components.state
        self._departures = components.departures

    def verify(self, plan: Plan, result: StepResult) -> None:
        """StepError if the result lacks what the feature needs. Nothing has changed yet."""

    def arrived(self, rows: ResultRows) -> None:
        """Positions are confirmed, and no token is appended yet. `rows.count` may be changed."""

    def appended(self, rows: ResultRows) -> None:
        """Tokens are known, and complete sequences have not ended yet. `rows.reported` may be
        lowered."""

    def ended(self, rows: ResultRows) -> list[Ended]:
        """Complete sequences have ended. Returns what ends besides."""
        return []
