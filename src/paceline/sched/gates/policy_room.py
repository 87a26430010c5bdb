"""Requests that the policy lets wait although the step has budget left."""

from paceline.core.config import Config
from paceline.sched.entrants import Entrant
from paceline.sched.gates.gate import AdmissionGate, Shut
from paceline.sched.gates.step_room import StepRoom
from paceline.sched.policy import Policy
from paceline.sched.state import SchedulerState


class PolicyRoom(AdmissionGate):
    """The policy leaves the entrant positions of the budget to begin with."""

    @classmethod
    def create(cls, config: Config, state: SchedulerState) -> "PolicyRoom | None":
        leaves_all = type(state.policy).room is Policy.room
        return None if leaves_all else cls()

    def shut(self, entrant: Entrant, room: StepRoom) -> Shut | None:
        return Shut("room") if not entrant.tokens and entrant.room < room.left else None
