"""The room left in a step, and why a gate is shut."""

from dataclasses import dataclass, field

from paceline.sched.admission.rows import Used


@dataclass(frozen=True, slots=True)
class Shut:
    """Why a gate is shut.

    A shut gate stops the queue, unless it passes the sequence over: then that one keeps its queue
    position, and the next one is considered in the same step.
    """

    reason: str
    short: int = 0  # the number missing
    lasting: bool = False  # until a slot or block is freed or another sequence is next
    passes_over: bool = False


@dataclass(slots=True)
class StepRoom:
    """The room left in a step, also in a hypothetical one without some residents."""

    vacant: int  # slots
    left: int  # positions of the step's budget
    free: int  # blocks that an admission may use
    first: bool  # the step has no row yet
    used: Used = field(default_factory=dict[str, int])  # see `Used`
    gone: tuple[int, ...] = ()  # resident slots that count as vacant
