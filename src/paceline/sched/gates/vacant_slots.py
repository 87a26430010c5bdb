"""Slots: `max_num_seqs`."""

from paceline.core.config import Config
from paceline.sched.entrants import Entrant
from paceline.sched.gates.gate import AdmissionGate, Shut
from paceline.sched.gates.step_room import StepRoom
from paceline.sched.state import SchedulerState


class VacantSlots(AdmissionGate):
    """There is a slot for every sequence of a request."""

    @classmethod
    def create(cls, config: Config, state: SchedulerState) -> "VacantSlots":
        return cls()

    def shut(self, entrant: Entrant, room: StepRoom) -> Shut | None:
        short = entrant.size - room.vacant
        return Shut("seqs", short, lasting=True) if short > 0 else None
