"""The answer of a gate that is shut."""

from dataclasses import dataclass


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
