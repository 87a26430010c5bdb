"""Parallel samples of which a request returns only the best."""

import numpy as np

from paceline.core.arrays import Bool
from paceline.core.errors import StepError
from paceline.core.plan import Plan, StepResult
from paceline.sched.result_rows import ResultHook, ResultRows


class BestSamples(ResultHook):
    """Adds up the log-probabilities of such samples. Clients get their tokens at the end."""

    def verify(self, plan: Plan, result: StepResult) -> None:
        """A row that yields a token must have its log-probability."""
        table, rows = self._state.table, plan.rows
        if not table.silenced:
            return
        shape = (0,) if result.logprob is None else result.logprob.shape
        if shape[:-1] == (len(rows),) and shape[-1] >= int(result.count.max()):
            return
        due = table.alive(rows) & (result.count > 0) & table.silent[rows.slot]
        for row in np.flatnonzero(due).tolist():
            if not table.sequence(int(rows.slot[row])).request.beam_width:
                label = rows.labels[row]
                raise StepError(f"step {plan.step}: {label!r} asked for log-probabilities")

    def appended(self, rows: ResultRows) -> None:
        state = self._state
        if not state.table.silenced:
            return
        slot, logprob = rows.rows.slot, rows.result.logprob
        silent: Bool = state.table.silent[slot]
        rows.reported = np.where(silent, 0, rows.count)
        for row in np.flatnonzero(rows.rows.samples & silent).tolist():
            sequence = state.table.sequence(int(slot[row]))
            family = state.families[sequence.id]
            if family.search is None:
                assert logprob is not None
                gained: list[float] = logprob[rows.source(row), : rows.count[row]].tolist()
                score = family.scores.get(sequence.child, 0.0)
                family.scores[sequence.child] = sum(gained, start=score)
