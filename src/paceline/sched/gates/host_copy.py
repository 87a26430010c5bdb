"""Copies to the host that are still under way."""

from paceline.core.config import Config
from paceline.sched.entrants import Entrant
from paceline.sched.gates.gate import AdmissionGate, Shut
from paceline.sched.gates.step_room import StepRoom
from paceline.sched.state import SchedulerState


class HostCopy(AdmissionGate):
    """A swapped sequence returns only after all of its blocks have reached the host."""

    @classmethod
    def create(cls, config: Config, state: SchedulerState) -> "HostCopy | None":
        return cls() if config.preemption.swap_space else None

    def shut(self, entrant: Entrant, room: StepRoom) -> Shut | None:
        return None if entrant.ready else Shut("swapping")
