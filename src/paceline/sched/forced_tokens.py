"""Tokens that the device did not sample, because a constraint leaves one way."""

import numpy as np

from paceline.core.errors import StepError
from paceline.core.plan import Plan, StepResult
from paceline.sched.result_rows import ResultHook, ResultRows


class ForcedTokens(ResultHook):
    """Appends them behind what a row sampled, so that the next steps compute several at once.

    step k        computes …, samples a          forced behind a: b c d
    step k + 1    computes a, samples b          launched before that was known: b is dropped
    step k + 2    computes b c d, samples e
    """

    def verify(self, plan: Plan, result: StepResult) -> None:
        """Only a row that yields a token may have forced ones behind it."""
        for one in result.forced:
            if not (0 <= one.row < len(plan.rows) and result.count[one.row] and one.tokens):
                raise StepError(f"step {plan.step}: row {one.row} cannot have forced tokens")

    def arrived(self, rows: ResultRows) -> None:
        table, slot = self._state.table, rows.rows.slot
        # A row that samples has computed all that is known, unless more has become known since.
        rows.count[(rows.yielded > 0) & (table.known[slot] > table.computed[slot])] = 0
        found = self._found(rows)
        if not found:
            return
        ends = {row: int(rows.yielded[row]) + len(tokens) for row, tokens in found.items()}
        ids = np.full((len(slot), max(rows.ids.shape[1], *ends.values())), -1, np.int32)
        ids[:, : rows.ids.shape[1]] = rows.ids
        for row, tokens in found.items():
            ids[row, rows.yielded[row] : ends[row]] = tokens
            room = int(table.limit[slot[row]] - table.known[slot[row]])
            rows.count[row] = min(ends[row], room)
        rows.ids = ids

    def appended(self, rows: ResultRows) -> None:
        table = self._state.table
        for row in self._found(rows):
            slot = int(rows.rows.slot[row])
            tokens = table.tokens[slot, int(table.planned[slot]) : int(table.known[slot])]
            self._state.changes.chosen[slot] = tuple(tokens.tolist())

    def _found(self, rows: ResultRows) -> dict[int, tuple[int, ...]]:
        """The forced tokens of rows whose sequence is still here."""
        if not rows.result.forced:
            return {}
        places = {rows.source(row): row for row in range(len(rows.rows))}
        forced = {one.row: one.tokens for one in rows.result.forced}
        return {places[row]: tokens for row, tokens in forced.items() if row in places}
