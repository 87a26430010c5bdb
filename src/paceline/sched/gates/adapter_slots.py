"""Adapters: `max_loras`."""

from collections import Counter

from paceline.core.config import Config
from paceline.sched.entrants import Entrant
from paceline.sched.gates.gate import AdmissionGate, Shut
from paceline.sched.gates.step_room import StepRoom
from paceline.sched.state import SchedulerState

REASON = "an adapter slot"


class AdapterSlots(AdmissionGate):
    """Residents use at most `max_loras` different adapters; a request with a further one is passed
    over."""

    def __init__(self, state: SchedulerState, most: int) -> None:
        self._table, self._most = state.table, most

    @classmethod
    def create(cls, config: Config, state: SchedulerState) -> "AdapterSlots | None":
        return cls(state, config.step.max_loras) if config.step.max_loras else None

    def shut(self, entrant: Entrant, room: StepRoom) -> Shut | None:
        adapter = entrant.sequence.request.adapter
        if not adapter:
            return None
        used = self._table.adapters if not room.gone else self._left_by(room.gone)
        if adapter in used or len(used) < self._most:
            return None
        return Shut(REASON, 1, passes_over=True)

    def _left_by(self, gone: tuple[int, ...]) -> Counter[str]:
        """Adapters in use if these residents were gone."""
        leaving = [self._table.sequence(slot).request.adapter for slot in gone]
        return Counter(self._table.adapters) - Counter(leaving)
