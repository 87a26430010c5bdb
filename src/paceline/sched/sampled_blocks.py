"""Blocks that a connector gets when a sequence first samples."""

import numpy as np

from paceline.sched.result_rows import ResultHook, ResultRows


class SampledBlocks(ResultHook):
    """Stores what residents were given as soon as they have sampled from it, so that other engines
    may load it while they go on."""

    def appended(self, rows: ResultRows) -> None:
        state = self._state
        if not state.stores.wanted:
            return
        slot, table = rows.rows.slot, state.table
        first = (rows.count > 0) & (table.known[slot] - rows.count == table.given[slot])
        for row in np.flatnonzero(first).tolist():
            state.stores.sampled(int(slot[row]))
