"""Most remaining tokens first: a batch of requests ends when its longest one does."""

from math import inf

import numpy as np

from paceline.core.arrays import I32, Index
from paceline.core.request import Sequence
from paceline.core.settings.config import PolicyConfig
from paceline.sched.policy import Policy, View, within_budget


class Longest(Policy):
    """Orders by the tokens that a request may still generate, from its `max_tokens`.

    This minimises the time of a whole batch: in any other order, a long request that came late
    decodes alone at the end. After `ageing_s` a request goes first whatever its length, so a batch
    that takes longer ends in the order of arrival.

    If reading the weights dominates the time of a step, a prompt costs almost nothing in a step
    with few positions. With `fill_positions`, a request that will end before a resident can wait
    for such steps: its prompt fills them up to that number. The request that would end last begins
    at once. So does one without `max_tokens`, before all others, since its end is unknown.

        steps            ──────────────────────────────────────▶
        longest          ████████████████████████████████████████
        can wait         ░░░░░░░████████████████████████████        its prompt fills steps here
        can wait longer  ░░░░░░░░░░░░░░░░██████████████████
    """

    def __init__(self, config: PolicyConfig, view: View) -> None:
        super().__init__(config, view)
        self.patience_s = config.ageing_s

    def rank(self, sequence: Sequence) -> tuple[float, ...]:
        return (-to_come(sequence) if is_bounded(sequence) else -inf,)

    def room(self, sequence: Sequence, rest: int, taken: int, left: int) -> int:
        fill = self.config.fill_positions
        if not fill:
            return left
        end = self._end() + 1  # residents have been planned in this step already
        if not self._can_wait(sequence, rest, taken + left, end):
            return left
        return min(left, max(fill - taken, 0))

    def share(self, slot: Index, want: I32, budget: int) -> I32:
        """A request may also delay the rest of a prompt that it has begun."""
        fill = self.config.fill_positions
        if not fill or int(want.sum()) <= min(fill, budget):
            return within_budget(want, budget)
        table, behind = self.view.table, np.flatnonzero(want > 1)
        rests = table.remaining(slot[behind]).tolist()
        waiting = zip(behind, slot[behind].tolist(), rests, strict=True)
        end = self._end()
        patient = [
            at
            for at, one, rest in waiting
            if self._can_wait(table.sequence(one), rest, budget, end)
        ]
        granted = want.copy()
        granted[patient] = 0
        granted = within_budget(granted, budget)
        left = min(fill, budget) - int(granted.sum())
        granted[patient] = within_budget(want[patient], max(left, 0))
        return granted

    def _can_wait(self, sequence: Sequence, rest: int, budget: int, end: int) -> bool:
        """Will it end before `end`, even if this step computes nothing of it?"""
        if not is_bounded(sequence) or self.impatient(sequence):
            return False
        steps = -(-rest // max(budget - len(self.view.table.order), 1))  # the last one samples
        return steps - 1 + to_come(sequence) < end

    def _end(self) -> int:
        """Most tokens that a bounded resident may generate after the steps in flight."""
        table = self.view.table
        bounded = table.order[table.bounded[table.order]]
        known = np.maximum(table.known[bounded], table.planned[bounded] + 1)
        return int((table.limit[bounded] - known).max(initial=0))


def is_bounded(sequence: Sequence) -> bool:
    """Does it have `max_tokens`?"""
    return sequence.request.max_tokens is not None


def to_come(sequence: Sequence) -> int:
    """Most tokens that it may still generate."""
    return sequence.limit - len(sequence.tokens)
