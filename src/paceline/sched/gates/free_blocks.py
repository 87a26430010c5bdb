"""Blocks: what is free, less the watermark."""

from paceline.core.config import Config
from paceline.sched.entrants import Entrant
from paceline.sched.gates.gate import AdmissionGate, Shut
from paceline.sched.gates.step_room import StepRoom
from paceline.sched.state import SchedulerState


class FreeBlocks(AdmissionGate):
    """There are blocks for the entrant and for the sequences that fork from it."""

    @classmethod
    def create(cls, config: Config, state: SchedulerState) -> "FreeBlocks":
        return cls()

    def shut(self, entrant: Entrant, room: StepRoom) -> Shut | None:
        short = entrant.short_of_blocks(room.free)
        return Shut("blocks", short, lasting=True) if short > 0 else None
