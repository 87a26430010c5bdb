"""First come, first served."""

from paceline.sched.policy import Policy


class Fcfs(Policy):
    """In the order of submission; the newest resident gives way.

    Nobody overtakes on the way in, so a request waits at most for those submitted before
    it. Of several that were preempted, the one preempted last comes back first.
    """
