"""Rules by which requests end that have waited too long."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from paceline.core.request import Sequence
from paceline.sched.plugin_checks import check_late
from paceline.sched.policy import Policy
from paceline.sched.queue_limits import QueueLimits


class Overdue(NamedTuple):
    """A request that has waited too long, as one of its sequences, and the rule it broke."""

    sequence: Sequence
    message: str


Timeout = Callable[[float], Iterator[Overdue]]
"""Lists the requests that are overdue at a time; they end before the next one is listed.

It is an object and no closure, so that a checkpoint of the scheduler can hold it.
"""


@dataclass(frozen=True, slots=True)
class PolicyTimeout:
    """Ends requests that the policy calls late."""

    policy: Policy

    def __call__(self, now: float) -> Iterator[Overdue]:
        for sequence in self.policy.late(now):
            check_late(self.policy, sequence)
            yield Overdue(sequence, "its deadline passed in the queue")


@dataclass(frozen=True, slots=True)
class QueueTimeout:
    """Ends requests that were not started within `queue_timeout_s`."""

    limits: QueueLimits
    live: Mapping[str, Sequence]  # of the scheduler, by request id

    def __call__(self, now: float) -> Iterator[Overdue]:
        limits = self.limits
        message = f"it was not started within queue_timeout_s ({limits.timeout_s:g} s)"
        for request_id in limits.overdue(now):
            yield Overdue(self.live[request_id], message)


def load(policy: Policy, limits: QueueLimits, live: Mapping[str, Sequence]) -> tuple[Timeout, ...]:
    """The rules that these settings have, in the order in which they apply; most have none."""
    made: list[Timeout] = []
    if type(policy).late is not Policy.late:
        made.append(PolicyTimeout(policy))
    if limits.timeout_s:
        made.append(QueueTimeout(limits, live))
    return tuple(made)
