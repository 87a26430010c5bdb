"""Smaller priority first, then earlier arrival."""

import numpy as np

from paceline.core.arrays import Index
from paceline.core.config import PolicyConfig
from paceline.core.request import Sequence
from paceline.sched.policy import Policy, View


class Priority(Policy):
    """The worst priority gives way. What waited for `ageing_s` goes first.

    With `preempt_on_arrival` a waiting request displaces a resident of strictly worse
    priority. Arrival does not count there: two equals would push each other out in turn.
    Nor does one displace a resident old enough to go first: it would come right back.
    """

    def __init__(self, config: PolicyConfig, view: View) -> None:
        super().__init__(config, view)
        self.patience_s = config.ageing_s

    def rank(self, sequence: Sequence) -> tuple[float, ...]:
        return (sequence.request.priority, sequence.arrival)

    def victim(self) -> int:
        return self._worst(self.view.table.order)

    def displaceable(self, sequence: Sequence, now: float) -> list[int]:
        if not self.config.preempt_on_arrival:
            return []
        table, priority = self.view.table, sequence.request.priority
        worse = [
            slot
            for slot in table.order[::-1].tolist()
            if table.sequence(slot).request.priority > priority
            and now - table.sequence(slot).queued_at < self.patience_s
        ]
        return sorted(worse, key=lambda slot: -table.sequence(slot).request.priority)

    def _worst(self, slots: Index) -> int:
        table = self.view.table
        priority = np.array([table.sequence(slot).request.priority for slot in slots.tolist()])
        return self.pick(slots[priority == priority.max()])
