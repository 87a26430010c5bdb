"""The state of a recorded scheduler between two calls, as the beginning of a recording."""

from dataclasses import dataclass
from typing import Any

from paceline.core.config import Config
from paceline.sched.replay.plans_in_flight import PlansInFlight
from paceline.sched.replay.records import RecordingError
from paceline.sched.replay.state.decoder import Decoder, Layout
from paceline.sched.replay.state.encoder import Encoder
from paceline.sched.scheduler import Scheduler

WRONG = (
    ArithmeticError,
    AttributeError,
    ImportError,
    LookupError,
    MemoryError,
    TypeError,
    ValueError,
)


@dataclass(frozen=True, slots=True)
class SchedulerCheckpoint:
    """Everything that decides what a scheduler does next."""

    attributes: dict[str, Any]  # of the scheduler
    flight: PlansInFlight

    def encoded(self, config: Config) -> bytes:
        """RecordingError if a part of the state, such as that of a plug-in, cannot be written."""
        try:
            return Encoder(plug_ins(config)).encoded([self.attributes, self.flight])
        except RecordingError:
            raise
        except WRONG as error:
            raise RecordingError(
                f"the state of the scheduler cannot be recorded: {type(error).__name__}: {error}"
            ) from None

    @staticmethod
    def decoded(content: bytes, config: Config) -> "SchedulerCheckpoint":
        """RecordingError if the state is of a version whose objects had other attributes."""
        try:
            found = Decoder(content, plug_ins(config))
        except WRONG as error:
            raise RecordingError(f"{type(error).__name__}: {error}") from None
        fresh = SchedulerCheckpoint(vars(Scheduler(config)), PlansInFlight()).encoded(config)
        check_layouts(found.layouts, Decoder(fresh, plug_ins(config)).layouts)
        attributes, flight = found.root
        return SchedulerCheckpoint(attributes, flight)

    def scheduler(self) -> Scheduler:
        """A scheduler in this state."""
        scheduler = Scheduler.__new__(Scheduler)
        vars(scheduler).update(self.attributes)
        return scheduler


def check_layouts(recorded: list[Layout], known: list[Layout]) -> None:
    """Refuse objects that lack an attribute of this version, or have one that it does not know."""
    expected = {layout.kind: set(layout.names) for layout in known}
    for kind, names in recorded:
        missing = expected.get(kind, set[str]()) - set(names)
        unknown = {name for name in set(names) - missing if not hasattr(kind, name)}
        unknown -= expected.get(kind, unknown)
        if missing or unknown:
            named = ", ".join(sorted(missing | unknown))
            raise RecordingError(f"{kind.__name__} has other attributes in this version: {named}")


def plug_ins(config: Config) -> frozenset[str]:
    """The packages of classes that the settings name by a dotted path."""
    named = config.policy.policy, config.step.discipline, config.speculation.speculation
    return frozenset(name.partition(".")[0] for name in named if "." in name)
