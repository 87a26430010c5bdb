"""First come, first served."""

from paceline.sched.policy import Policy


class Fcfs(Policy):
    """Admits in the order of submission and preempts the newest resident.

    No request is admitted before an earlier one, so it waits only for those submitted before
    it. Of several that were preempted, the one preempted last comes back first.
    """
