"""Entrants and rooms written by hand, and gates of one's own."""

from typing import ClassVar

from paceline.core.request import Sequence
from paceline.core.settings.config import Config
from paceline.sched.admission.entrants import Entrant
from paceline.sched.admission.gates import AdmissionGate
from paceline.sched.admission.step_room import Shut, StepRoom
from paceline.sched.disciplines.prefill_first import PrefillFirst
from paceline.sched.disciplines.unified import Unified
from paceline.sched.state import SchedulerState
from tests.sched.support import ask


class Newcomer(Entrant):
    """An entrant that needs as many blocks as it says."""

    def __init__(
        self,
        size: int = 1,
        rest: int = 8,
        room: int = 8,
        tokens: int = 8,
        blocks: int = 2,
        ready: bool = True,
        lacks: str = "budget",
    ) -> None:
        request = ask("a", 8)
        super().__init__(Sequence(request, 0, 12, 0.0, request.prompt), size, rest, room, tokens)
        self.ready, self.lacks, self._blocks = ready, lacks, blocks

    def short_of_blocks(self, free: int) -> int:
        return self._blocks - free


def room(vacant: int = 4, left: int = 8, free: int = 8, first: bool = True) -> StepRoom:
    return StepRoom(vacant, left, free, first)


class OneAdapter(AdmissionGate):
    """All residents use the same adapter; requests with another one are passed over."""

    asked: ClassVar[int] = 0  # how often

    def __init__(self, at: SchedulerState) -> None:
        self._at = at

    @classmethod
    def create(cls, config: Config, at: SchedulerState) -> "OneAdapter":
        return cls(at)

    def shut(self, entrant: Entrant, room: StepRoom) -> Shut | None:
        OneAdapter.asked += 1
        slots = set(self._at.table.order.tolist()).difference(room.gone)
        here = {self._at.table.sequence(slot).request.adapter for slot in slots}
        if not here - {entrant.sequence.request.adapter}:
            return None
        return Shut("its adapter", passes_over=True)


class Barred(AdmissionGate):
    """Requests whose id is listed do not get in; those in `stops` stop the queue as well."""

    passes: ClassVar[set[str]] = set()
    stops: ClassVar[set[str]] = set()

    @classmethod
    def create(cls, config: Config, at: SchedulerState) -> "Barred":
        return cls()

    def shut(self, entrant: Entrant, room: StepRoom) -> Shut | None:
        if entrant.sequence.id in self.stops:
            return Shut("a permit")
        return Shut("a permit", passes_over=True) if entrant.sequence.id in self.passes else None


class NeverShut(AdmissionGate):
    """A gate that its settings never shut."""

    @classmethod
    def create(cls, config: Config, at: SchedulerState) -> None:
        return None

    def shut(self, entrant: Entrant, room: StepRoom) -> Shut | None:
        raise AssertionError("it is not there")


class UnifiedOneAdapter(Unified):
    """Residents share one adapter."""

    gates = (OneAdapter, *Unified.gates)


class UnifiedBarred(Unified):
    """Some requests are barred."""

    gates = (Barred, *Unified.gates)


class PrefillFirstBarred(PrefillFirst):
    """Some requests are barred."""

    gates = (Barred, *PrefillFirst.gates)


ONE_ADAPTER = f"{__name__}.UnifiedOneAdapter"
BARRED = [f"{__name__}.UnifiedBarred", f"{__name__}.PrefillFirstBarred"]
