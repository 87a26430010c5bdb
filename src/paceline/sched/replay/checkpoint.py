"""The state of a recorded scheduler between two calls, with which a file can begin."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.core.plan import NO_STATE_MOVES, Pairs, Plan, Rows, StateMoves
from paceline.core.settings.config import Config
from paceline.sched.replay.records import RecordingError
from paceline.sched.replay.state.decoder import Decoder, Layout
from paceline.sched.replay.state.encoder import Encoder
from paceline.sched.scheduler import Scheduler

REMEMBERED = 1024  # steps without rows


@dataclass(frozen=True, slots=True)
class ListedCopies:
    """Blocks and states that a plan copies."""

    blocks: Pairs
    states: StateMoves

    @staticmethod
    def of(plan: Plan) -> "ListedCopies":
        return ListedCopies(plan.copies + plan.swap_out + plan.swap_in, plan.states)


NO_COPIES = ListedCopies((), NO_STATE_MOVES)


class PlansInFlight:
    """Plans in flight by step, until they are committed or given up.

    Copies of steps without rows are remembered longer: a caller may commit such a step twice, and
    the scheduler treats it differently if its plan was empty.
    """

    def __init__(self) -> None:
        self._plans: dict[int, Plan] = {}
        self._moves: dict[int, ListedCopies] = {}  # of steps that had no rows

    def add(self, plan: Plan) -> None:
        if plan.empty:
            return
        self._plans[plan.step] = plan
        if not len(plan.rows):
            self._moves[plan.step] = ListedCopies.of(plan)
            if len(self._moves) > REMEMBERED:
                del self._moves[next(iter(self._moves))]

    def to_commit(self, step: int, rows: int) -> Plan:
        """The plan of a step, or a stand-in if it is no longer in flight."""
        plan = self._plans.get(step)
        return plan if plan is not None else stand_in(step, rows, self._moves.get(step, NO_COPIES))

    def committed(self, step: int) -> None:
        self._plans.pop(step, None)

    def clear(self) -> None:
        self._plans.clear()

    def give_up(self, step: int) -> Plan:
        """The plan of a lost step; all steps in flight are given up."""
        plan = self._plans.get(step)
        if plan is None:
            return stand_in(step, 1)
        self._plans.clear()
        return plan


def stand_in(step: int, rows: int, moves: ListedCopies = NO_COPIES) -> Plan:
    """A stand-in for a plan that is not in flight, with the parts that a scheduler reads."""
    none, names = np.zeros(rows, np.int32), np.full(rows, "", object)
    slot, serial = none.astype(np.intp), none.astype(np.int64)
    samples = none.astype(np.bool_)
    made = Rows(slot, none, serial, names, none, none, none, samples)
    return Plan(step, made, none, copies=moves.blocks, states=moves.states)


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
    """All state that affects a scheduler's decisions."""

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
    """The packages of the classes that the settings name by dotted path."""
    named = config.policy.policy, config.step.discipline, config.speculation.speculation
    named = (*named, config.cache.snapshots, config.cache.eviction)
    return frozenset(name.partition(".")[0] for name in named if "." in name)
