"""Commits the result of a step: tokens, counters and ends."""

from dataclasses import replace
from typing import ClassVar

import numpy as np

from paceline.core.arrays import Bool, Index
from paceline.core.errors import StepError
from paceline.core.events import Happened
from paceline.core.plan import Ended, Outputs, Plan, StepResult
from paceline.core.request import Finish, Sequence
from paceline.sched.components import SchedulerComponents
from paceline.sched.draft_results import DraftResults
from paceline.sched.encoded_items import EncodedItems
from paceline.sched.explain.journal import note
from paceline.sched.failures import Failures
from paceline.sched.families.beam_reports import BeamReports
from paceline.sched.families.best_samples import BestSamples
from paceline.sched.forced_tokens import ForcedTokens
from paceline.sched.result_rows import ResultHook, ResultRows
from paceline.sched.sampled_blocks import SampledBlocks
from paceline.sched.steady import Steady


class Accounting:
    """Appends sampled tokens, takes rejected drafts back, and ends what is complete.

    What a feature does with a result is in its hook, in the order of `hooks`.
    """

    hooks: ClassVar[tuple[type[ResultHook], ...]] = (
        DraftResults,
        ForcedTokens,
        BestSamples,
        BeamReports,
        EncodedItems,
        SampledBlocks,
    )

    def __init__(self, components: SchedulerComponents) -> None:
        self._state = components.state
        self._departures = components.departures
        self._stops = components.stops
        self._failures = Failures(components)
        hooks = [kind(components) for kind in self.hooks]
        self._verify = [one.verify for one in hooks if type(one).verify is not ResultHook.verify]
        self._arrived = [
            one.arrived for one in hooks if type(one).arrived is not ResultHook.arrived
        ]
        self._appended = [
            one.appended for one in hooks if type(one).appended is not ResultHook.appended
        ]
        self._ended = [one.ended for one in hooks if type(one).ended is not ResultHook.ended]

    def commit(self, plan: Plan, result: StepResult) -> Outputs:
        """Commit any step: rows may be failed, stale, partial, drafted, first or last."""
        self._check_form(plan, result)
        for verify in self._verify:
            verify(plan, result)
        if not result.failed:
            return self._commit_rows(plan, result)
        failed = self._failures.end(plan, result)  # from here on their rows are stale
        outputs = self._commit_rows(plan, result)
        return replace(outputs, finished=(*failed, *outputs.finished))

    def _commit_rows(self, plan: Plan, result: StepResult) -> Outputs:
        """Append what each row sampled whose sequence is still here, and end complete ones."""
        state, table = self._state, self._state.table
        result_rows = ResultRows.of(plan, result, table.alive(plan.rows))
        rows, slot = result_rows.rows, result_rows.rows.slot
        state.stats.stale_rows += len(plan.rows) - len(rows)
        rejected = np.where(rows.samples, rows.drafts + 1 - result_rows.yielded, 0)
        table.confirm(slot, rows.count, rejected)
        known = table.known[slot]
        result_rows.count = np.minimum(result_rows.yielded, table.limit[slot] - known)
        for arrived in self._arrived:
            arrived(result_rows)
        stops = self._stops.cut(table, slot, result_rows.ids, result_rows.count)
        first = rows.samples & (known == table.prompt[slot])
        table.append(slot, result_rows.ids, result_rows.count)
        for place in slot[first].tolist():
            self._note_first(table.sequence(place), plan.step)
        state.stats.sampled += int(result_rows.count.sum())
        state.policy.sampled(slot, result_rows.count)
        for appended in self._appended:
            appended(result_rows)
        ends = self._end_complete(slot, self._outputs(result_rows), stops)
        others = [end for ended in self._ended for end in ended(result_rows)]
        return replace(ends, finished=(*ends.finished, *others)) if others else ends

    def _outputs(self, result_rows: ResultRows) -> Outputs:
        """What clients get of the rows."""
        rows, ids = result_rows.rows, result_rows.ids
        count = result_rows.count if result_rows.reported is None else result_rows.reported
        handle, origin = self._state.table.handle[rows.slot], result_rows.origin
        return Outputs(rows.serial, rows.request_id, rows.child, handle, ids, count, row=origin)

    def commit_steady(self, steady: Steady, result: StepResult) -> Outputs:
        """Commit a step in which every row sampled one token and no feature takes part."""
        state, rows, ids = self._state, steady.rows, result.ids
        suspects = self._stops.suspects(ids[:, 0])
        stops: dict[int, int] = {}
        if suspects is not None and suspects.any():
            stops = self._stops.cut(state.table, rows.slot, ids[:, :1], result.count.copy())
        state.table.append_one(rows.slot, ids[:, 0])
        state.stats.sampled += steady.size
        state.policy.sampled(rows.slot, result.count)
        named = rows.serial, rows.request_id, rows.child, steady.handle
        outputs = Outputs(*named, ids, result.count)
        if stops or steady.completes_some():
            return self._end_complete(rows.slot, outputs, stops)
        return outputs

    def _end_complete(self, slot: Index, outputs: Outputs, stops: dict[int, int]) -> Outputs:
        """End the rows that stopped or reached their limit."""
        full: Bool = self._state.table.known[slot] >= self._state.table.limit[slot]
        complete = sorted({*stops, *np.flatnonzero(full).tolist()})
        ended = [end for row in complete for end in self._end(int(slot[row]), stops.get(row))]
        return replace(outputs, finished=tuple(ended)) if ended else outputs

    def _end(self, slot: int, stop_token: int | None) -> list[Ended]:
        finish = Finish.LENGTH if stop_token is None else Finish.STOP
        return self._departures.finish(self._state.table.sequence(slot), finish, stop_token)

    def _note_first(self, sequence: Sequence, step: int) -> None:
        """Note the first token of a request, for a family once."""
        if all(moment.happened is not Happened.FIRST_TOKEN for moment in sequence.life):
            note(sequence, Happened.FIRST_TOKEN, self._state.now, step)

    @staticmethod
    def _check_form(plan: Plan, result: StepResult) -> None:
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
            least, limit = int(due[row]), int(most[row])
            raise StepError(
                f"step {plan.step}: the result of {rows.labels[row]!r} has "
                f"{int(result.count[row])} tokens; it must have "
                f"{least if least == limit else f'{least} to {limit}'}"
            )
