"""The quantities of a step that its time depends on."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.core.plan import Plan


@dataclass(frozen=True, slots=True)
class BatchSummary:
    """Amounts of one step.

    rows          sequences that compute something
    positions     that they compute together
    samples       positions after which a token is chosen: one of each row that yields one, and
                  its drafts
    contexts      tokens whose keys and values the rows read: all up to the last position of each
    longest       tokens that the longest of the rows reads that compute one position each
    deepest       the same of the rows that compute several
    pairs         of a position and a token that it attends to, in rows of several positions
    has_prompts   whether a row computes more than one position, drafts not counted
    copies, swap_out, swap_in   blocks copied on the device, to the host and from it
    admitted, finished          sequences that join with this step, or ended before it
    is_changed    whether its rows are others than those of the step before
    drafts        of the row that has most
    """

    rows: int
    positions: int
    samples: int
    contexts: int
    longest: int = 0
    pairs: int = 0
    has_prompts: bool = False
    copies: int = 0
    swap_out: int = 0
    swap_in: int = 0
    admitted: int = 0
    finished: int = 0
    is_changed: bool = False
    deepest: int = 0
    drafts: int = 0

    @property
    def is_mixed(self) -> bool:
        """Are there rows of several positions? Prompts and drafts run the same kernels."""
        return self.has_prompts or self.drafts > 0

    @staticmethod
    def decode(rows: int, context: int) -> "BatchSummary":
        """Rows of one position each that all read `context` tokens."""
        return BatchSummary(rows, rows, rows, rows * context, context)

    @staticmethod
    def prompt(count: int, start: int = 0) -> "BatchSummary":
        """One row that computes `count` positions from `start` on, and samples."""
        end = start + count
        if count == 1:
            return BatchSummary.decode(1, end)
        pairs = pairs_of(count, start)
        return BatchSummary(1, count, 1, end, pairs=pairs, has_prompts=True, deepest=end)

    @staticmethod
    def verifying(drafts: Sequence[int], context: int) -> "BatchSummary":
        """Rows that read `context` tokens up to their first position, and verify so many drafts."""
        if not any(drafts):
            return BatchSummary.decode(len(drafts), context)
        most, positions = max(drafts), len(drafts) + sum(drafts)
        return BatchSummary(
            rows=len(drafts),
            positions=positions,
            samples=positions,
            contexts=len(drafts) * context + sum(drafts),
            longest=0 if all(drafts) else context,
            pairs=sum(pairs_of(1 + own, context - 1) for own in drafts if own),
            deepest=context + most,
            is_changed=True,
            drafts=most,
        )

    def later(self, steps: int) -> "BatchSummary":
        """The same rows, of one position each, so many steps later."""
        rows, contexts = self.rows, self.contexts + steps * self.rows
        return BatchSummary(rows, rows, rows, contexts, self.longest + steps)

    @staticmethod
    def of(plan: Plan, before: Plan | None = None) -> "BatchSummary":
        """Of a plan; `before` is the one that was launched before it, if rows may repeat."""
        rows = plan.rows
        count, start = rows.count.astype(np.int64), plan.start.astype(np.int64)
        several = np.flatnonzero(count > 1)
        pairs = sum(map(pairs_of, count[several].tolist(), start[several].tolist()))
        return BatchSummary(
            rows=len(rows),
            positions=int(count.sum()),
            samples=int(rows.samples.sum() + rows.drafts.sum()),
            contexts=int((start + count).sum()),
            longest=int((start[count == 1] + 1).max(initial=0)),
            pairs=pairs,
            has_prompts=bool((count - rows.drafts > 1).any()),
            copies=len(plan.copies),
            swap_out=len(plan.swap_out),
            swap_in=len(plan.swap_in),
            admitted=len(plan.admitted),
            finished=len(plan.finished),
            deepest=int((start + count)[several].max(initial=0)),
            is_changed=before is None or before.rows is not plan.rows,
            drafts=int(rows.drafts.max(initial=0)),
        )


def pairs_of(count: int, start: int) -> int:
    """Each position attends to those in front of it and to itself."""
    return count * start + count * (count + 1) // 2
