"""First come, first served."""

from paceline.sched.policy import Policy


class Fcfs(Policy):
    """In the order of submission; the newest resident gives way.

    Nobody overtakes, so a request waits at most for those submitted before it.
    """
