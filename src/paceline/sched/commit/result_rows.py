"""The rows of a result, and hooks that process them."""

from dataclasses import dataclass

import numpy as np

from paceline.core.arrays import I32, Bool, Index, every
from paceline.core.plan import Ended, Plan, Rows, StepResult
from paceline.sched.components import SchedulerComponents


@dataclass(slots=True, eq=False)
class ResultRows:
    """The alive rows of a step: those whose sequence still has its slot.

    count      tokens to append: the yielded ones and forced ones after them, cut by limits, stop
               tokens and features
    reported   of those, the tokens that clients get with this step; None: all
    """

    plan: Plan  # of the whole step, as is `result`
    result: StepResult
    rows: Rows
    origin: Index | None  # row in the plan and the result; None: all are alive
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
        rows = rows.only(alive)
        origin, count = np.flatnonzero(alive), count[alive]
        return ResultRows(plan, result, rows, origin, result.ids[alive], count, count)

    def source(self, row: int) -> int:
        """The row of the result for one of these rows."""
        return row if self.origin is None else int(self.origin[row])


class ResultHook:
    """A feature's part in commits. The methods are called in this order for every step that is not
    steady; a subclass overrides those that it needs."""

    def __init__(self, components: SchedulerComponents) -> None:
        self._state = components.state
        self._departures = components.departures

    def verify(self, plan: Plan, result: StepResult) -> None:
        """StepError if the result lacks data that the feature needs. No state has changed yet."""

    def arrived(self, rows: ResultRows) -> None:
        """Called after positions are confirmed, before tokens are appended; may set counts."""

    def appended(self, rows: ResultRows) -> None:
        """Called after tokens are appended, before complete sequences end. May lower
        `rows.reported`."""

    def ended(self, rows: ResultRows) -> list[Ended]:
        """Called after complete sequences ended. Returns further ends."""
        return []
