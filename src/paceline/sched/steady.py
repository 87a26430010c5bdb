"""Steady decode: repeat the rows of the previous step, one position further."""

import numpy as np

from paceline.core.arrays import I32, every
from paceline.core.plan import NOTHING_GROWN, Kind, Plan, Rows, StepResult
from paceline.kv.cache import KVCache
from paceline.sched.composition import Composition
from paceline.sched.slots import SlotTable

TABLE = 2  # dimensions of a result's ids


class Steady:
    """Rows to repeat while no sequence joins, leaves, drafts, reaches a limit or needs the host
    between two steps.

    Every row computes one position of a resident that has sampled before, and samples one token,
    so planning the next step only looks for rows that need a new block.
    """

    def __init__(
        self, rows: Rows, kind: Kind, table: SlotTable, cache: KVCache, steps: int
    ) -> None:
        """Rows for at most `steps` steps."""
        self.rows = rows
        self.size = len(rows)
        self.handle = table.handle[rows.slot]
        self._kind: Kind = kind
        self._table = table
        self._cache = cache
        planned = table.planned[rows.slot]
        self._steps_left = min(int((table.ceiling[rows.slot] - planned).min()), steps)
        self._steps_to_edge = self._to_edge(planned)
        self._commits_left: int | None = None  # until one of the rows reaches its limit
        self._once = np.ones(self.size, np.int32).tobytes()  # faster to compare than an array

    @classmethod
    def of(cls, step: Composition, rows: Rows, table: SlotTable, cache: KVCache) -> "Steady | None":
        """The rows of a step if they can be repeated, otherwise None."""
        if step.quiet <= 1 or not cls.suits(rows, step.start, table):
            return None
        return cls(rows, step.kind, table, cache, step.quiet - 1)

    @staticmethod
    def suits(rows: Rows, start: I32, table: SlotTable) -> bool:
        """Are the rows all residents, each with one position, and none needs the host?"""
        if not len(rows) or len(rows) != len(table.order) or table.needs_host:
            return False
        slot = rows.slot
        return every((rows.count == 1) & rows.samples & (start >= table.given[slot]))

    def _to_edge(self, planned: I32) -> int:
        """Steps until a row needs another block."""
        room = self._cache.tables.room(self.rows.slot) - planned
        return int(room.min())

    def plan(self, step: int) -> Plan | None:
        """Plan the next step; None if the rows cannot be repeated."""
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
        """Did every row yield exactly one token, which no feature must process?"""
        ids, count = result.ids, result.count
        if self._table.needs_host:
            return False
        fits = ids.ndim == TABLE and ids.shape[0] == self.size and ids.shape[1] > 0
        right = count.ndim == 1 and count.dtype == np.int32
        is_plain = not (result.failed or result.forced)
        return fits and right and is_plain and count.tobytes() == self._once

    def after(self, plan: Plan) -> "Steady | None":
        """These rows after a general commit; None if they cannot be repeated.

        Rejected drafts move rows back. Otherwise the commits left are counted again.
        """
        if plan.rows.drafts.any():
            return None
        self._commits_left = None
        return self

    def completes_some(self) -> bool:
        """After a steady commit: has a row reached its limit?"""
        if self._commits_left is None:
            slot = self.rows.slot
            self._commits_left = int((self._table.limit[slot] - self._table.known[slot]).min())
        else:
            self._commits_left -= 1
        return self._commits_left == 0
