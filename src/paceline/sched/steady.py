"""The steady decode: the same rows again, one position further."""

import numpy as np

from paceline.core.arrays import I32, every
from paceline.core.plan import NOTHING_GROWN, Kind, Plan, Rows, StepResult
from paceline.kv.cache import KVCache
from paceline.sched.composition import Composition
from paceline.sched.slots import SlotTable

TABLE = 2  # dimensions of a result's ids


class Steady:
    """Rows that can be planned again while no sequence joins, leaves, drafts, reaches a limit or
    needs the host between two steps.

    Every row is a resident past what it was given that computes one position and samples one
    token, so the next step is known without looking at the rows, except for those that need a new
    block.
    """

    def __init__(
        self, rows: Rows, kind: Kind, table: SlotTable, cache: KVCache, steps: int
    ) -> None:
        """For at most `steps` steps."""
        self.rows = rows
        self.size = len(rows)
        self.handle = table.handle[rows.slot]
        self._kind: Kind = kind
        self._table = table
        self._cache = cache
        planned = table.planned[rows.slot]
        self._steps_left = min(int((table.ceiling[rows.slot] - planned).min()), steps)
        self._steps_to_edge = self._to_edge(planned)
        self._commits_left: int | None = None  # until one of the rows is complete
        self._once = np.ones(self.size, np.int32).tobytes()  # faster to compare than an array

    @classmethod
    def of(cls, step: Composition, rows: Rows, table: SlotTable, cache: KVCache) -> "Steady | None":
        """The rows of a step, if they can be planned again; None if not."""
        if step.quiet <= 1 or not cls.suits(rows, step.start, table):
            return None
        return cls(rows, step.kind, table, cache, step.quiet - 1)

    @staticmethod
    def suits(rows: Rows, start: I32, table: SlotTable) -> bool:
        """Will all residents do the same again, without the host?"""
        if not len(rows) or len(rows) != len(table.order) or table.needs_host:
            return False
        slot = rows.slot
        return every((rows.count == 1) & rows.samples & (start >= table.given[slot]))

    def _to_edge(self, planned: I32) -> int:
        """Steps until one of the rows needs another block."""
        room = self._cache.tables.room(self.rows.slot) - planned
        return int(room.min())

    def plan(self, step: int) -> Plan | None:
        """The next step, or None if these rows cannot simply go on."""
        if self._steps_left == 0 or self._table.needs_host:
            return None
        slot = self.rows.slot
        start = self._table.planned[slot]
        grown = NOTHING_GROWN
        if self._steps_to_edge == 0:
            found = self._cache.tables.grow_at(slot, start)
            if found is None:
                return None
            grown = found
            self._steps_to_edge = self._to_edge(start)
        self._table.advance(slot, start + 1)
        self._steps_to_edge -= 1
        self._steps_left -= 1
        return Plan(step, self.rows, start, grown, kind=self._kind)

    def sampled_once(self, result: StepResult) -> bool:
        """Whether every row yielded exactly one token, and no feature has to look at it."""
        ids, count = result.ids, result.count
        if self._table.needs_host:
            return False
        fits = ids.ndim == TABLE and ids.shape[0] == self.size and ids.shape[1] > 0
        right = count.ndim == 1 and count.dtype == np.int32
        is_plain = not (result.failed or result.forced)
        return fits and right and is_plain and count.tobytes() == self._once

    def after(self, plan: Plan) -> "Steady | None":
        """These rows after a commit of another form; None if they cannot be planned again.

        Rejected drafts move rows back. Otherwise the tokens that are left are counted again.
        """
        if plan.rows.drafts.any():
            return None
        self._commits_left = None
        return self

    def completes_some(self) -> bool:
        """After a commit of these rows: has one of them all the tokens it may have?"""
        if self._commits_left is None:
            slot = self.rows.slot
            self._commits_left = int((self._table.limit[slot] - self._table.known[slot]).min())
        else:
            self._commits_left -= 1
        return self._commits_left == 0
