"""What a step has left for sequences that want to join it, and why a gate is shut."""

from dataclasses import dataclass, field

from paceline.sched.admission.rows import Used


@dataclass(frozen=True, slots=True)
class Shut:
    """Why a gate is shut, and what that means for the sequences behind.

    A gate stops the queue, unless it passes the sequence over: then that one keeps its place,
    and the next one is considered in the same step.
    """

    reason: str
    short: int = 0  # of what it lacks
    lasting: bool = False  # shut until a slot or block comes free or another sequence is next
    passes_over: bool = False


@dataclass(slots=True)
class StepRoom:
    """The state that gates compare with: the real one, or one with some residents gone."""

    vacant: int  # slots
    left: int  # positions of the step's budget
    free: int  # blocks that an admission may use
    first: bool  # the step has no row yet
    used: Used = field(default_factory=dict[str, int])  # what limits count
    gone: tuple[int, ...] = ()  # resident slots that count as vacated
