"""What a step has left for sequences that want to join it."""

from dataclasses import dataclass, field

from paceline.sched.limits.rows import Used


@dataclass(slots=True)
class StepRoom:
    """The state that gates compare with: the real one, or one with some residents gone."""

    vacant: int  # slots
    left: int  # positions of the step's budget
    free: int  # blocks that an admission may use
    first: bool  # the step has no row yet
    used: Used = field(default_factory=dict[str, int])  # what limits count
    gone: tuple[int, ...] = ()  # resident slots that count as vacated
