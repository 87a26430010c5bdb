"""Gates: the conditions for admitting a sequence."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable
from typing import Protocol

from paceline.core.errors import PluginError
from paceline.core.settings.config import Config
from paceline.sched.admission.entrants import Entrant
from paceline.sched.admission.step_room import Shut, StepRoom
from paceline.sched.policy import Policy
from paceline.sched.state import SchedulerState


class AdmissionGate(Protocol):
    """A condition for admitting a sequence.

    A gate keeps no state. It checks waiting sequences, swapped ones that return, and those that
    could displace residents: `room` says what the step has left.
    """

    @classmethod
    @abstractmethod
    def create(cls, config: Config, state: SchedulerState) -> "AdmissionGate | None":
        """Create the gate; None if the settings never shut it."""

    @abstractmethod
    def shut(self, entrant: Entrant, room: StepRoom) -> Shut | None:
        """Why the entrant may not join now; None: it may."""


class Gates:
    """An ordered list of gates; the first shut one counts."""

    def __init__(
        self, kinds: Iterable[type[AdmissionGate]], config: Config, state: SchedulerState
    ) -> None:
        made = [kind.create(config, state) for kind in kinds]
        self._gates = [gate for gate in made if gate is not None]

    def __len__(self) -> int:
        return len(self._gates)

    def shut(self, entrant: Entrant, room: StepRoom) -> Shut | None:
        """Why the entrant may not join now; None: it may."""
        for gate in self._gates:
            shut = gate.shut(entrant, room)
            if shut is not None:
                if not isinstance(shut, Shut):  # pyright: ignore[reportUnnecessaryIsInstance]
                    raise PluginError(
                        f"gate {type(gate).__name__} answers {shut!r:.80} for request "
                        f"{entrant.sequence.id!r}; it must be a Shut, or None"
                    )
                return shut
        return None


ADAPTER_SLOT = "an adapter slot"


class AdapterSlots(AdmissionGate):
    """At most `max_loras` adapters are in use; a request that needs another is passed over."""

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
        return Shut(ADAPTER_SLOT, 1, passes_over=True)

    def _left_by(self, gone: tuple[int, ...]) -> Counter[str]:
        """Adapters in use without these residents."""
        leaving = [self._table.sequence(slot).request.adapter for slot in gone]
        return Counter(self._table.adapters) - Counter(leaving)


class FirstRow(AdmissionGate):
    """The limits leave the entrant at least one position."""

    @classmethod
    def create(cls, config: Config, state: SchedulerState) -> "FirstRow":
        return cls()

    def shut(self, entrant: Entrant, room: StepRoom) -> Shut | None:
        if entrant.tokens:
            return None
        reason = entrant.lacks
        return Shut(reason, max(entrant.rest - room.left, 0), lasting=reason == "budget")


class FreeBlocks(AdmissionGate):
    """There are enough free blocks for the entrant and its forks."""

    @classmethod
    def create(cls, config: Config, state: SchedulerState) -> "FreeBlocks":
        return cls()

    def shut(self, entrant: Entrant, room: StepRoom) -> Shut | None:
        short = entrant.short_of_blocks(room.free)
        return Shut("blocks", short, lasting=True) if short > 0 else None


class HostCopy(AdmissionGate):
    """All blocks of a swapped sequence must have reached the host."""

    @classmethod
    def create(cls, config: Config, state: SchedulerState) -> "HostCopy | None":
        return cls() if config.preemption.swap_space else None

    def shut(self, entrant: Entrant, room: StepRoom) -> Shut | None:
        return None if entrant.ready else Shut("swapping")


class PolicyRoom(AdmissionGate):
    """The policy grants the entrant positions of the budget."""

    @classmethod
    def create(cls, config: Config, state: SchedulerState) -> "PolicyRoom | None":
        leaves_all = type(state.policy).room is Policy.room
        return None if leaves_all else cls()

    def shut(self, entrant: Entrant, room: StepRoom) -> Shut | None:
        return Shut("room") if not entrant.tokens and entrant.room < room.left else None


class SlotsForOthers(AdmissionGate):
    """A request of more than `spared` sequences must leave `spared` slots vacant; until it can, it
    is passed over. If it is too wide for that, it joins when all slots are vacant. A preempted
    request needs no slots beyond its sequences."""

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


class VacantSlots(AdmissionGate):
    """There is a vacant slot for every sequence of the request."""

    @classmethod
    def create(cls, config: Config, state: SchedulerState) -> "VacantSlots":
        return cls()

    def shut(self, entrant: Entrant, room: StepRoom) -> Shut | None:
        short = entrant.size - room.vacant
        return Shut("seqs", short, lasting=True) if short > 0 else None
