"""Smaller priority first, then earlier arrival."""

from paceline.core.arrays import Index
from paceline.core.request import Sequence
from paceline.core.settings.config import PolicyConfig
from paceline.sched.policy import Policy, View


class Priority(Policy):
    """Preempts the worst priority. After `ageing_s` a request goes first and is not preempted.

    With `preempt_on_arrival` a waiting request displaces a resident of strictly worse priority.
    Arrival does not count there: two equals would displace each other in turn. A resident old
    enough to go first is not displaced either: it would return at once.
    """

    def __init__(self, config: PolicyConfig, view: View) -> None:
        super().__init__(config, view)
        self.patience_s = config.ageing_s

    def rank(self, sequence: Sequence) -> tuple[float, ...]:
        return (sequence.request.priority, sequence.arrival)

    def victim(self) -> int:
        slots = self.view.table.order
        young = self._young(slots)
        if not len(young):  # all are old enough to go first: preempt the youngest
            return max(slots.tolist(), key=self._seniority)
        worst = max(self._priority(slot) for slot in young.tolist())
        return self.pick(young[[self._priority(slot) == worst for slot in young.tolist()]])

    def displaceable(self, sequence: Sequence, now: float) -> list[int]:
        if not self.config.preempt_on_arrival:
            return []
        priority = sequence.request.priority
        candidates = self.by_loss(self._young(self.view.table.order))
        worse = [slot for slot in candidates if self._priority(slot) > priority]
        return sorted(worse, key=self._priority, reverse=True)

    def _young(self, slots: Index) -> Index:
        return slots[[not self.impatient(self._sequence(slot)) for slot in slots.tolist()]]

    def _seniority(self, slot: int) -> tuple[float, int]:
        sequence = self._sequence(slot)
        return sequence.queued_at, sequence.serial

    def _priority(self, slot: int) -> int:
        return self._sequence(slot).request.priority

    def _sequence(self, slot: int) -> Sequence:
        return self.view.table.sequence(slot)
