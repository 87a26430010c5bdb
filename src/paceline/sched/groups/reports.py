"""Reports of sequence groups: beams, or the best of parallel samples."""

import numpy as np

from paceline.core.arrays import Bool, Index
from paceline.core.errors import StepError
from paceline.core.plan import Ended, Plan, StepResult
from paceline.sched.commit.result_rows import ResultHook, ResultRows
from paceline.sched.components import SchedulerComponents
from paceline.sched.groups.beams import Candidate
from paceline.sched.groups.forks import Forks
from paceline.sched.groups.group import SequenceGroup


class BeamReports(ResultHook):
    """Discards the sampled tokens of beams, and collects their candidates. When a group has all,
    the search chooses the next tokens."""

    def __init__(self, components: SchedulerComponents) -> None:
        super().__init__(components)
        self._forks = Forks(components)

    def verify(self, plan: Plan, result: StepResult) -> None:
        """A row of a beam that yields a token must have candidates."""
        table, rows, found = self._state.table, plan.rows, result.candidates
        if not table.silenced:
            return
        listed = np.zeros(len(rows), np.bool_)
        if found is not None and len(found.ids) == len(rows):
            listed |= found.ids.shape == found.logprob.shape and (found.ids >= 0).any(axis=1)
        due = table.alive(rows) & (result.count > 0) & ~listed
        for row in self._beams(rows.slot, due):
            raise StepError(f"step {plan.step}: {rows.labels[row]!r} asked for candidates")

    def arrived(self, rows: ResultRows) -> None:
        if self._state.table.silenced:
            rows.count[self._beams(rows.rows.slot)] = 0

    def ended(self, rows: ResultRows) -> list[Ended]:
        if not self._state.table.silenced:
            return []
        complete: list[SequenceGroup] = []
        for row in self._beams(rows.rows.slot, rows.rows.samples):
            sequence = self._state.table.sequence(int(rows.rows.slot[row]))
            sequence_group = self._state.sequence_groups[sequence.id]
            sequence_group.reports[sequence.child] = _candidates(rows.result, rows.source(row))
            if len(sequence_group.reports) == len(sequence_group.members):
                complete.append(sequence_group)
        return [end for sequence_group in complete for end in self._forks.advance(sequence_group)]

    def _beams(self, slot: Index, where: Bool | bool = True) -> list[int]:
        """Those of the rows `where` that belong to beams."""
        table = self._state.table
        silent = np.flatnonzero(table.silent[slot] & where).tolist()
        return [row for row in silent if table.sequence(int(slot[row])).request.beam_width]


def _candidates(result: StepResult, row: int) -> list[Candidate]:
    assert result.candidates is not None
    ids, logprob = result.candidates.ids[row], result.candidates.logprob[row]
    pairs = zip(ids.tolist(), logprob.tolist(), strict=True)
    return [Candidate(token, value) for token, value in pairs if token >= 0]


class BestSamples(ResultHook):
    """Sums the log-probabilities of samples; clients get the tokens of the best at the end."""

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
            sequence_group = state.sequence_groups[sequence.id]
            if sequence_group.search is None:
                assert logprob is not None
                gained: list[float] = logprob[rows.source(row), : rows.count[row]].tolist()
                score = sequence_group.scores.get(sequence.child, 0.0)
                sequence_group.scores[sequence.child] = sum(gained, start=score)
