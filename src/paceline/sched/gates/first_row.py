"""The limits of a step, which leave an arrival a row or not."""

from paceline.core.config import Config
from paceline.sched.entrants import Entrant
from paceline.sched.gates.gate import AdmissionGate, Shut
from paceline.sched.gates.step_room import StepRoom
from paceline.sched.state import SchedulerState


class FirstRow(AdmissionGate):
    """The limits let the entrant compute something in this step."""

    @classmethod
    def create(cls, config: Config, state: SchedulerState) -> "FirstRow":
        return cls()

    def shut(self, entrant: Entrant, room: StepRoom) -> Shut | None:
        if entrant.tokens:
            return None
        reason = entrant.lacks
        return Shut(reason, max(entrant.rest - room.left, 0), lasting=reason == "budget")
