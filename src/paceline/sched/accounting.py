"""Folds the result of a step into the columns."""

from dataclasses import replace

import numpy as np

from paceline.core.arrays import I32, Bool, Index
from paceline.core.errors import StepError
from paceline.core.events import Happened
from paceline.core.plan import Ended, Outputs, Plan, StepResult
from paceline.core.request import Finish, Sequence
from paceline.sched.explain.journal import note
from paceline.sched.failures import Failures
from paceline.sched.families.beams import Candidate
from paceline.sched.families.family import Family
from paceline.sched.families.forks import Forks
from paceline.sched.residency import Residency
from paceline.sched.speculation import DraftedStep, expected, judged, learned, missed, waits
from paceline.sched.steady import Steady


class Accounting:
    """Appends sampled tokens, takes rejected drafts back, and ends what is done."""

    def __init__(self, residency: Residency) -> None:
        self._at = residency
        self._forks = Forks(residency)
        self._failures = Failures(residency)

    def commit(self, plan: Plan, result: StepResult) -> Outputs:
        """Any step: rows may be failed, stale, partial, drafted, first or last."""
        self._refuse_nonsense(plan, result)
        if self._at.table.silenced:
            self._refuse_silence(plan, result)
        if not result.failed:
            return self._fold(plan, result)
        ended = self._failures.end(plan, result)  # from here on their rows are stale
        outputs = self._fold(plan, result)
        return replace(outputs, finished=(*ended, *outputs.finished))

    def _fold(self, plan: Plan, result: StepResult) -> Outputs:
        """Append what rows sampled whose sequence is still here, and end complete ones."""
        table, rows = self._at.table, plan.rows
        slot, ids, count, drafts = rows.slot, result.ids, result.count, rows.drafts
        width, samples, serial, name = rows.count, rows.samples, rows.serial, rows.request_id
        child, alive = rows.child, table.alive(rows)
        origin = None
        if not alive.all():
            origin = np.flatnonzero(alive)
            self._at.stats.stale_rows += len(rows) - int(alive.sum())
            slot, ids, count, drafts = slot[alive], ids[alive], count[alive], drafts[alive]
            width, samples, serial, name = width[alive], samples[alive], serial[alive], name[alive]
            child = child[alive]
        rejected = np.where(samples, drafts + 1 - count, 0)
        table.confirm(slot, width, rejected)
        if drafts.any():
            self._learn(plan, slot, count, result.drafts_of(rows)[alive])
        known = table.known[slot]
        count = np.minimum(count, table.limit[slot] - known)
        if table.silenced:
            count[self._beams(slot)] = 0  # their tokens are chosen when all have reported
        stops = self._at.stops.cut(table, slot, ids, count)
        first = samples & (known == table.prompt[slot])
        table.append(slot, ids, count)
        for place in slot[first].tolist():
            self._note_first(table.sequence(place), plan.step)
        self._at.stats.sampled += int(count.sum())
        self._at.policy.sampled(slot, count)
        outputs = Outputs(serial, name, child, ids, count, row=origin)
        if not table.silenced:
            return self._end_complete(slot, outputs, stops)
        outputs = replace(outputs, count=np.where(table.silent[slot], 0, count))
        reported = self._hear(result, np.flatnonzero(alive), slot, count, samples)
        outputs = self._end_complete(slot, outputs, stops)
        ends = [end for family in reported for end in self._forks.advance(family)]
        return replace(outputs, finished=(*outputs.finished, *ends))

    def commit_steady(self, steady: Steady, result: StepResult) -> Outputs:
        """Every row of the plan is still here, and sampled one token."""
        at, rows, ids = self._at, steady.rows, result.ids
        suspects = at.stops.suspects(ids[:, 0])
        stops: dict[int, int] = {}
        if suspects is not None and suspects.any():
            stops = at.stops.cut(at.table, rows.slot, ids[:, :1], result.count.copy())
        at.table.append_one(rows.slot, ids[:, 0])
        at.stats.sampled += steady.size
        at.policy.sampled(rows.slot, result.count)
        outputs = Outputs(rows.serial, rows.request_id, rows.child, ids, result.count)
        if stops or steady.completes_some():
            return self._end_complete(rows.slot, outputs, stops)
        return outputs

    def _end_complete(self, slot: Index, outputs: Outputs, stops: dict[int, int]) -> Outputs:
        """End the rows that stopped or reached their limit."""
        full: Bool = self._at.table.known[slot] >= self._at.table.limit[slot]
        complete = sorted({*stops, *np.flatnonzero(full).tolist()})
        ended = [end for row in complete for end in self._end(int(slot[row]), stops.get(row))]
        return replace(outputs, finished=tuple(ended)) if ended else outputs

    def _end(self, slot: int, stop_token: int | None) -> list[Ended]:
        finish = Finish.LENGTH if stop_token is None else Finish.STOP
        return self._at.finish(self._at.table.sequence(slot), finish, stop_token)

    def _note_first(self, sequence: Sequence, step: int) -> None:
        """The first token of a request; members of a family live one life."""
        if all(moment.happened is not Happened.FIRST_TOKEN for moment in sequence.life):
            note(sequence, Happened.FIRST_TOKEN, self._at.now, step)

    # -- families that are reported only at the end --------------------------

    def _beams(self, slot: Index) -> list[int]:
        """Rows that belong to a beam search."""
        table, silent = self._at.table, np.flatnonzero(self._at.table.silent[slot]).tolist()
        return [row for row in silent if table.sequence(int(slot[row])).request.beam_width]

    def _hear(
        self, result: StepResult, origin: Index, slot: Index, count: I32, samples: Bool
    ) -> list[Family]:
        """Take note of scores and candidates; returns the beam searches that can go on.

        Row i here is row `origin[i]` of the result.
        """
        at = self._at
        complete: list[Family] = []
        for row in np.flatnonzero(samples & at.table.silent[slot]).tolist():
            sequence = at.table.sequence(int(slot[row]))
            family = at.families[sequence.id]
            if family.search is None:
                assert result.logprob is not None
                gained: list[float] = result.logprob[origin[row], : count[row]].tolist()
                score = family.scores.get(sequence.child, 0.0)
                family.scores[sequence.child] = sum(gained, start=score)
                continue
            family.reports[sequence.child] = self._candidates(result, int(origin[row]))
            if len(family.reports) == len(family.members):
                complete.append(family)
        return complete

    @staticmethod
    def _candidates(result: StepResult, row: int) -> list[Candidate]:
        assert result.candidates is not None
        ids, logprob = result.candidates.ids[row], result.candidates.logprob[row]
        pairs = zip(ids.tolist(), logprob.tolist(), strict=True)
        return [Candidate(token, value) for token, value in pairs if token >= 0]

    def _refuse_silence(self, plan: Plan, result: StepResult) -> None:
        """Rows that ask for log-probabilities or candidates must have got them."""
        rows, table, found = plan.rows, self._at.table, result.candidates
        shape = (0,) if result.logprob is None else result.logprob.shape
        scored = shape[:-1] == (len(rows),) and shape[-1] >= int(result.count.max())
        listed = np.zeros(len(rows), np.bool_)
        if found is not None and len(found.ids) == len(rows):
            listed |= found.ids.shape == found.logprob.shape and (found.ids >= 0).any(axis=1)
        due = table.alive(rows) & (result.count > 0) & table.silent[rows.slot]
        for row in np.flatnonzero(due).tolist():
            request = table.sequence(int(rows.slot[row])).request
            if not (listed[row] if request.beam_width else scored):
                what = "candidates" if request.beam_width else "log-probabilities"
                raise StepError(f"step {plan.step}: {rows.labels[row]!r} asked for {what}")

    def _learn(self, plan: Plan, slot: Index, count: I32, computed: I32) -> None:
        """What became of the drafts of rows that are still here."""
        table, stats, rows = self._at.table, self._at.stats, plan.rows
        drafted = rows.drafts[table.alive(rows)] > 0
        slot, accepted, computed = slot[drafted], count[drafted] - 1, computed[drafted]
        misses = missed(table.misses[slot], accepted, computed)
        acceptance = learned(table.acceptance[slot], accepted, computed)
        table.verified(slot, computed, accepted)
        table.learn(slot, acceptance, misses, plan.step + waits(misses))
        seen = int(judged(accepted, computed).sum())
        table.expect(expected(table.first_acceptance, int(accepted.sum()), seen))
        number, right = int(computed.sum()), int(accepted.sum())
        stats.drafted += number
        stats.accepted += right
        width = rows.count - rows.drafts
        step = (int(width.sum()), int(rows.samples.sum()), number, right)
        self._at.speculation.verified(DraftedStep(*step, is_decode=bool((width == 1).all())))

    @staticmethod
    def _refuse_nonsense(plan: Plan, result: StepResult) -> None:
        rows, shape = plan.rows, result.ids.shape
        if shape[:-1] != (len(rows),) or result.count.shape != (len(rows),):
            raise StepError(
                f"step {plan.step} has {len(rows)} rows; its result has ids {shape} "
                f"and counts {result.count.shape}"
            )
        due = rows.samples
        if result.failed:
            failed = [one.row for one in result.failed]
            if min(failed) < 0 or max(failed) >= len(rows):
                raise StepError(f"step {plan.step} has {len(rows)} rows; of them {failed} failed")
            due = due.copy()
            due[failed] = False
        drafts = result.drafts_of(rows)
        if drafts.shape != rows.drafts.shape or ((drafts < 0) | (drafts > rows.drafts)).any():
            raise StepError(
                f"step {plan.step} computed {drafts.tolist()} drafts; {rows.drafts.tolist()} "
                f"were planned"
            )
        most = np.where(due, 1 + drafts, 0)
        wrong = (result.count > np.minimum(most, shape[1])) | (result.count < due)
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            raise StepError(
                f"step {plan.step}: {rows.labels[row]!r} yielded {int(result.count[row])} "
                f"tokens; between {int(due[row])} and {int(most[row])} were due"
            )
