"""Most tokens still to come first: a batch of requests ends when its longest one does."""

from math import inf

import numpy as np

from paceline.core.arrays import I32, Index
from paceline.core.request import Sequence
from paceline.core.settings.config import PolicyConfig
from paceline.sched.policy import Policy, View, within_budget


class Longest(Policy):
    """Orders by the tokens that a request may still generate, as `max_tokens` bounds them.

    For a batch that should be done, all of it, as soon as possible. In any other order a long
    request that came in late decodes alone at the end. After `ageing_s` a request goes first
    whatever it may generate, so a batch that takes longer ends in the order of arrival.

    Where reading the weights is most of a step, a prompt costs next to nothing in a step that has
    few positions. With `fill_positions`, a request that will end before a resident can wait for
    such steps: its prompt fills them up to that number. The request that would end last begins
    at once. So does one without `max_tokens`, before all others, since its end is not known.

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
        end = self._end() + 1  # residents have been served in this step already
        if not self._can_wait(sequence, rest, taken + left, end):
            return left
        return min(left, max(fill - taken, 0))

    def share(self, slot: Index, want: I32, budget: int) -> I32:
        """A request that began with a chunk of its prompt may also wait with the rest of it."""
        fill = self.config.fill_positions
        if not fill or int(want.sum()) <= min(fill, budget):
            return within_budget(want, budget)
        table, behind = self.view.table, np.flatnonzero(want > 1)
        rests = table.remaining(slot[behind]).tolist()
        waiting = zip(behind, slot[behind].tolist(), rests, strict=True)
        end = self._end()
        patient = [
            at
            for at, own, rest in waiting
            if self._can_wait(table.sequence(own), rest, budget, end)
        ]
        granted = want.copy()
        granted[patient] = 0
        granted = within_budget(granted, budget)
        left = min(fill, budget) - int(granted.sum())
        granted[patient] = within_budget(want[patient], max(left, 0))
        return granted

    def _can_wait(self, sequence: Sequence, rest: int, budget: int, end: int) -> bool:
        """Will it have ended before the `end`, even if it does not go on in this step?"""
        if not is_bounded(sequence) or self.impatient(sequence):
            return False
        steps = -(-rest // max(budget - len(self.view.table.order), 1))  # the last one samples
        return steps - 1 + to_come(sequence) < end

    def _end(self) -> int:
        """Tokens that residents may still generate when all that is in flight has ended, at most,
        as far as that is known."""
        table = self.view.table
        bounded = table.order[table.bounded[table.order]]
        known = np.maximum(table.known[bounded], table.planned[bounded] + 1)
        return int((table.limit[bounded] - known).max(initial=0))


def is_bounded(sequence: Sequence) -> bool:
    """Does its `max_tokens` bound when it will end?"""
    return sequence.request.max_tokens is not None


def to_come(sequence: Sequence) -> int:
    """Tokens that it may still generate, at most."""
    return sequence.limit - len(sequence.tokens)
