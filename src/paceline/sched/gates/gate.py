"""What a gate is, and how a list of them lets a sequence in or not."""

from abc import abstractmethod
from collections.abc import Iterable
from typing import Protocol

from paceline.core.config import Config
from paceline.core.errors import PluginError
from paceline.sched.entrants import Entrant
from paceline.sched.gates.shut import Shut
from paceline.sched.gates.step_room import StepRoom
from paceline.sched.state import SchedulerState


class AdmissionGate(Protocol):
    """One condition that a sequence meets before it joins a step.

    A gate keeps no state. It is asked about sequences that wait, about swapped ones that return,
    and about those that would join if some residents were gone: `room` says what there is.
    """

    @classmethod
    @abstractmethod
    def create(cls, config: Config, state: SchedulerState) -> "AdmissionGate | None":
        """The gate with its settings; None if these settings never shut it."""

    @abstractmethod
    def shut(self, entrant: Entrant, room: StepRoom) -> Shut | None:
        """Why the entrant may not join now; None: it may."""


class Gates:
    """An ordered list of gates; the first one that is shut answers."""

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
