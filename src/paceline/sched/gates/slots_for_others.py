"""Slots that a request of several sequences leaves free: `slots_for_others`."""

from paceline.core.config import Config
from paceline.sched.entrants import Entrant
from paceline.sched.gates.gate import AdmissionGate, Shut
from paceline.sched.gates.step_room import StepRoom
from paceline.sched.state import SchedulerState


class SlotsForOthers(AdmissionGate):
    """A request of more sequences than `spared` joins when there are slots for all of them and some
    are left; until then it is passed over. One that is so wide that too few are left takes what
    there are. One that was preempted returns without more than its own slots."""

    def __init__(self, spared: int, slots: int) -> None:
        self._spared, self._slots = spared, slots

    @classmethod
    def create(cls, config: Config, state: SchedulerState) -> "SlotsForOthers | None":
        step = config.step
        return cls(step.slots_for_others, step.max_num_seqs) if step.slots_for_others else None

    def shut(self, entrant: Entrant, room: StepRoom) -> Shut | None:
        size = entrant.size
        returns = entrant.sequence.preemptions or entrant.sequence.swapped
        if size <= self._spared or returns:
            return None
        short = min(size + self._spared, self._slots) - room.vacant
        return Shut("others", short, passes_over=True) if short > 0 else None
