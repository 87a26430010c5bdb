"""What the result of a step says about its drafts."""

from paceline.sched.result_rows import ResultHook, ResultRows
from paceline.sched.speculation import DraftedStep, expected, judged, learned, missed, waits


class DraftResults(ResultHook):
    """Counts drafts that were computed and accepted, and lets slots and speculation learn from
    them."""

    def arrived(self, rows: ResultRows) -> None:
        drafted = rows.rows.drafts > 0
        if not drafted.any():
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
        self._state.speculation.verified(DraftedStep(*step, is_decode=bool((width == 1).all())))
