"""What a step's result does to the columns."""

from dataclasses import replace

import numpy as np

from paceline.core.arrays import I32, Bool, Index
from paceline.core.errors import StepError
from paceline.core.events import Happened
from paceline.core.plan import Ended, Outputs, Plan, StepResult
from paceline.core.request import Finish
from paceline.sched.journal import note
from paceline.sched.residency import Residency
from paceline.sched.steady import Steady

LEARNING = 0.1  # weight of the latest step in a sequence's acceptance


class Accounting:
    """Appends sampled tokens, takes rejected drafts back, and ends what is done."""

    def __init__(self, residency: Residency) -> None:
        self._at = residency

    def commit(self, plan: Plan, result: StepResult) -> Outputs:
        """Any step: rows may be stale, partial, drafted, first or last."""
        table, rows = self._at.table, plan.rows
        self._refuse_nonsense(plan, result)
        slot, ids, count, drafts = rows.slot, result.ids, result.count, rows.drafts
        width, samples, serial, name = rows.count, rows.samples, rows.serial, rows.request_id
        alive = table.alive(rows)
        if not alive.all():
            self._at.stats.stale_rows += len(rows) - int(alive.sum())
            slot, ids, count, drafts = slot[alive], ids[alive], count[alive], drafts[alive]
            width, samples, serial, name = width[alive], samples[alive], serial[alive], name[alive]
        rejected = np.where(samples, drafts + 1 - count, 0)
        table.confirm(slot, width, rejected)
        if drafts.any():
            self._learn(slot, count, drafts)
        known = table.known[slot]
        count = np.minimum(count, table.limit[slot] - known)
        stops = self._at.stops.cut(table, slot, ids, count)
        first = samples & (known == table.prompt[slot])
        table.append(slot, ids, count)
        for place in slot[first].tolist():
            note(table.sequence(place), Happened.FIRST_TOKEN, self._at.now, plan.step)
        self._at.stats.sampled += int(count.sum())
        self._at.policy.sampled(slot, count)
        return self._end_complete(slot, Outputs(serial, name, ids, count), stops)

    def commit_steady(self, steady: Steady, result: StepResult) -> Outputs:
        """Nobody left since the plan was made, and every row sampled one token."""
        at, rows, ids = self._at, steady.rows, result.ids
        suspects = at.stops.suspects(ids[:, 0])
        stops: dict[int, int] = {}
        if suspects is not None and suspects.any():
            stops = at.stops.cut(at.table, rows.slot, ids[:, :1], result.count.copy())
        at.table.append_one(rows.slot, ids[:, 0])
        at.stats.sampled += len(rows)
        at.policy.sampled(rows.slot, result.count)
        outputs = Outputs(rows.serial, rows.request_id, ids, result.count)
        if stops or steady.completes_some():
            return self._end_complete(rows.slot, outputs, stops)
        return outputs

    def _end_complete(self, slot: Index, outputs: Outputs, stops: dict[int, int]) -> Outputs:
        """End the rows that stopped or reached their limit."""
        full: Bool = self._at.table.known[slot] >= self._at.table.limit[slot]
        complete = sorted({*stops, *np.flatnonzero(full).tolist()})
        ended = tuple(self._end(int(slot[row]), stops.get(row)) for row in complete)
        return replace(outputs, finished=ended) if ended else outputs

    def _end(self, slot: int, stop_token: int | None) -> Ended:
        finish = Finish.LENGTH if stop_token is None else Finish.STOP
        return self._at.finish(self._at.table.sequence(slot), finish, stop_token)

    def _learn(self, slot: Index, count: I32, drafts: I32) -> None:
        drafted = drafts > 0
        accepted, drafts = count[drafted] - 1, drafts[drafted]
        share = (accepted / drafts).astype(np.float32)
        self._at.table.learn(slot[drafted], share, LEARNING)
        self._at.stats.drafted += int(drafts.sum())
        self._at.stats.accepted += int(accepted.sum())

    @staticmethod
    def _refuse_nonsense(plan: Plan, result: StepResult) -> None:
        rows, shape = plan.rows, result.ids.shape
        if shape[:-1] != (len(rows),) or result.count.shape != (len(rows),):
            raise StepError(
                f"step {plan.step} has {len(rows)} rows; its result has ids {shape} "
                f"and counts {result.count.shape}"
            )
        most = np.where(rows.samples, 1 + rows.drafts, 0)
        wrong = (result.count > np.minimum(most, shape[1])) | (result.count < rows.samples)
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            raise StepError(
                f"step {plan.step}: {rows.request_id[row]!r} yielded {int(result.count[row])} "
                f"tokens; between {int(rows.samples[row])} and {int(most[row])} were due"
            )
