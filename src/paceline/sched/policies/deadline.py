"""Least slack first, for first-token and per-token deadlines."""

import heapq
from collections.abc import Iterator

from paceline.core.request import Sequence
from paceline.core.settings.config import PolicyConfig
from paceline.sched.policy import Policy, View


class Deadline(Policy):
    """Slack is the due time, minus now, minus the time to compute uncached tokens.

    "Minus now" is the same for all requests, so the order needs no clock. A request without a
    deadline gets the default one, so that all of them age: a request due at d is overtaken only by
    requests that arrived before d plus the time of the longest prompt.
    """

    refresh = True  # work shrinks as the cache fills

    def __init__(self, config: PolicyConfig, view: View) -> None:
        super().__init__(config, view)
        self._first_due: list[tuple[float, int, Sequence]] = []
        self._ended = 0  # upper bound of ended requests in `_first_due`

    def due(self, sequence: Sequence) -> float:
        """When the next token is due."""
        return self._due_after(sequence, len(sequence.tokens) - len(sequence.request.prompt))

    def rank(self, sequence: Sequence) -> tuple[float, ...]:
        work_s = self.view.uncached(sequence) / self.config.prefill_tokens_per_s
        return (self.due(sequence) - work_s,)

    def victim(self) -> int:
        """The resident with the most slack."""
        table = self.view.table
        outputs = table.known - table.prompt
        due = {
            slot: self._due_after(table.sequence(slot), int(outputs[slot]))
            for slot in table.order.tolist()
        }
        latest = max(due.values())
        return self.pick(table.order[[due[slot] == latest for slot in table.order.tolist()]])

    def _due_after(self, sequence: Sequence, outputs: int) -> float:
        request = sequence.request
        first = sequence.arrival + (request.deadline or self.config.default_deadline_s)
        return first + outputs * (request.token_deadline or 0.0)

    def joined(self, sequence: Sequence) -> None:
        if self.config.refuse_late and sequence.request.deadline is not None:
            heapq.heappush(self._first_due, (self.due(sequence), sequence.serial, sequence))

    def left(self, sequence: Sequence) -> None:
        """Drop ended requests from `_first_due`, once they may be half of it."""
        self._ended += 1
        if self._ended > len(self._first_due) // 2:
            self._first_due = [due for due in self._first_due if due[2].finish is None]
            heapq.heapify(self._first_due)
            self._ended = 0

    def late(self, now: float) -> Iterator[Sequence]:
        while self._first_due and self._first_due[0][0] < now:
            _, _, sequence = heapq.heappop(self._first_due)
            if sequence.finish is None and not sequence.started:
                yield sequence
