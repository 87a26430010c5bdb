"""Commit the result of a step: tokens, counters and finished requests."""

from dataclasses import replace
from typing import ClassVar

import numpy as np

from paceline.core.arrays import I32, Bool, Index
from paceline.core.errors import StepError
from paceline.core.events import Happened
from paceline.core.plan import Ended, Outputs, Plan, StepResult
from paceline.core.request import Finish, Sequence
from paceline.sched.commit.result_rows import ResultHook, ResultRows
from paceline.sched.components import SchedulerComponents
from paceline.sched.explain.journal import note
from paceline.sched.groups.reports import BeamReports, BestSamples
from paceline.sched.lifecycle.failures import Failures
from paceline.sched.speculation import DraftedStep, expected, judged, learned, missed, waits
from paceline.sched.steady import Steady


class EncodedImages(ResultHook):
    """Confirms the images that a step encoded, and drops those that residents have passed."""

    def arrived(self, rows: ResultRows) -> None:
        if self._state.images.any or rows.plan.encode:
            self._state.images.landed(rows.plan)


class SampledBlocks(ResultHook):
    """Stores the blocks of residents at their first sample, so that other engines can load them
    while the residents decode."""

    def appended(self, rows: ResultRows) -> None:
        state = self._state
        if not state.stores.wanted:
            return
        slot, table = rows.rows.slot, state.table
        first = (rows.count > 0) & (table.known[slot] - rows.count == table.given[slot])
        for row in np.flatnonzero(first).tolist():
            state.stores.sampled(int(slot[row]))


class DraftResults(ResultHook):
    """Counts computed and accepted drafts, and updates the acceptance of slots and the
    speculation."""

    def arrived(self, rows: ResultRows) -> None:
        drafted = rows.rows.drafts > 0
        if not np.count_nonzero(drafted):
            return
        table, stats, planned = self._state.table, self._state.stats, rows.plan.rows
        slot, accepted = rows.rows.slot[drafted], rows.yielded[drafted] - 1
        drafts = rows.result.drafts_of(planned)
        computed = (drafts if rows.origin is None else drafts[rows.origin])[drafted]
        acceptance = learned(table.acceptance[slot], accepted, computed)
        misses = missed(table.misses[slot], accepted, computed, acceptance)
        table.verified(slot, computed, accepted)
        table.learn(slot, acceptance, misses, rows.plan.step + waits(misses))
        number, right = int(computed.sum()), int(accepted.sum())
        seen = int(judged(accepted, computed).sum())
        table.expect(expected(table.first_acceptance, right, seen))
        stats.drafted += number
        stats.accepted += right
        width = planned.count - planned.drafts
        step = (int(width.sum()), int(planned.samples.sum()), number, right)
        deepest, is_decode = int(computed.max()), bool((width == 1).all())
        self._state.speculation.verified(DraftedStep(*step, deepest=deepest, is_decode=is_decode))


class ForcedTokens(ResultHook):
    """Appends forced tokens after sampled ones; the next step computes all of them at once.

    step k        computes …, samples a          forced after a: b c d
    step k + 1    computes a, samples b          launched before step k ended: b is dropped
    step k + 2    computes b c d, samples e
    """

    def verify(self, plan: Plan, result: StepResult) -> None:
        """Only a row that yields a token may have forced ones."""
        for one in result.forced:
            if not (0 <= one.row < len(plan.rows) and result.count[one.row] and one.tokens):
                raise StepError(f"step {plan.step}: row {one.row} cannot have forced tokens")

    def arrived(self, rows: ResultRows) -> None:
        table, slot = self._state.table, rows.rows.slot
        # Drop samples of rows whose sequence has got forced tokens since the launch.
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
        """The forced tokens of alive rows."""
        if not rows.result.forced:
            return {}
        alive = {rows.source(row): row for row in range(len(rows.rows))}
        forced = {one.row: one.tokens for one in rows.result.forced}
        return {alive[row]: tokens for row, tokens in forced.items() if row in alive}


class Accounting:
    """Appends sampled tokens, removes rejected drafts, and ends complete sequences.

    Each feature processes results in a hook; hooks run in the order of `hooks`.
    """

    hooks: ClassVar[tuple[type[ResultHook], ...]] = (
        DraftResults,
        ForcedTokens,
        BestSamples,
        BeamReports,
        EncodedImages,
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
        """Commit a step of any kind."""
        self._check_form(plan, result)
        for verify in self._verify:
            verify(plan, result)
        if not result.failed:
            return self._commit_rows(plan, result)
        failed = self._failures.end(plan, result)  # makes their rows stale
        outputs = self._commit_rows(plan, result)
        return replace(outputs, finished=(*failed, *outputs.finished))

    def _commit_rows(self, plan: Plan, result: StepResult) -> Outputs:
        """Append the samples of alive rows, and end complete sequences."""
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
        for one in slot[first].tolist():
            self._note_first(table.sequence(one), plan.step)
        state.stats.sampled += int(result_rows.count.sum())
        state.policy.sampled(slot, result_rows.count)
        if state.promises.open:
            has_prompts = bool((plan.rows.count - plan.rows.drafts > 1).any())
            state.promises.sampled(slot, result_rows.count, state.now, has_prompts)
        for appended in self._appended:
            appended(result_rows)
        ends = self._end_complete(slot, self._outputs(result_rows), stops)
        others = [end for ended in self._ended for end in ended(result_rows)]
        return replace(ends, finished=(*ends.finished, *others)) if others else ends

    def _outputs(self, result_rows: ResultRows) -> Outputs:
        """The tokens that clients get."""
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
        if state.promises.open:
            state.promises.sampled(rows.slot, result.count, state.now, has_prompts=False)
        named = rows.serial, rows.request_id, rows.child, steady.handle
        outputs = Outputs(*named, ids, result.count)
        if stops or steady.completes_some():
            return self._end_complete(rows.slot, outputs, stops)
        return outputs

    def _end_complete(self, slot: Index, outputs: Outputs, stops: dict[int, int]) -> Outputs:
        """End the rows that stopped or reached their limit."""
        full: Bool = self._state.table.known[slot] >= self._state.table.limit[slot]
        complete = sorted({*stops, *full.nonzero()[0].tolist()})
        ended = [end for row in complete for end in self._end(int(slot[row]), stops.get(row))]
        return replace(outputs, finished=tuple(ended)) if ended else outputs

    def _end(self, slot: int, stop_token: int | None) -> list[Ended]:
        finish = Finish.LENGTH if stop_token is None else Finish.STOP
        return self._departures.finish(self._state.table.sequence(slot), finish, stop_token)

    def _note_first(self, sequence: Sequence, step: int) -> None:
        """Note the first token of a request, once for a sequence group."""
        if Happened.FIRST_TOKEN not in [moment.happened for moment in sequence.life]:
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
        if drafts is not rows.drafts and is_wrong_number(drafts, rows.drafts):
            raise StepError(
                f"step {plan.step} computed {drafts.tolist()} drafts; {rows.drafts.tolist()} "
                f"were planned"
            )
        most = np.where(due, 1 + drafts, 0)
        wrong = (result.count > np.minimum(most, shape[1])) | (result.count < due)
        if np.count_nonzero(wrong):
            row = int(np.flatnonzero(wrong)[0])
            least, limit = int(due[row]), int(most[row])
            raise StepError(
                f"step {plan.step}: the result of {rows.labels[row]!r} has "
                f"{int(result.count[row])} tokens; it must have "
                f"{least if least == limit else f'{least} to {limit}'}"
            )


def is_wrong_number(drafts: I32, planned: I32) -> bool:
    """Are the counts of computed drafts impossible, given those planned?"""
    return drafts.shape != planned.shape or bool(((drafts < 0) | (drafts > planned)).any())
