"""Rules by which requests end that have waited too long."""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from paceline.core.request import Sequence
from paceline.sched.policy import Policy
from paceline.sched.queue_limits import QueueLimits


class Overdue(NamedTuple):
    """A request that has waited too long, as one of its sequences, and the rule it broke."""

    sequence: Sequence
    message: str


Timeout = Callable[[float], Iterator[Overdue]]
"""Lists the requests that are overdue at a time; they end before the next one is listed."""


def load(policy: Policy, limits: QueueLimits, live: Mapping[str, Sequence]) -> tuple[Timeout, ...]:
    """The rules that these settings have, in the order in which they apply; most have none."""

    def by_policy(now: float) -> Iterator[Overdue]:
        for sequence in policy.late(now):
            yield Overdue(sequence, "its deadline passed in the queue")

    def by_queue(now: float) -> Iterator[Overdue]:
        message = f"it was not started within queue_timeout_s ({limits.timeout_s:g} s)"
        for request_id in limits.overdue(now):
            yield Overdue(live[request_id], message)

    made: list[Timeout] = []
    if type(policy).late is not Policy.late:
        made.append(by_policy)
    if limits.timeout_s:
        made.append(by_queue)
    return tuple(made)
