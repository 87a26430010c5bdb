"""Queue limits and timeouts."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from paceline.core.errors import QueueFull
from paceline.core.request import Request, Sequence
from paceline.core.settings.config import QueueConfig
from paceline.sched.plugin_checks import check_late
from paceline.sched.policy import Policy
from paceline.sched.view import SchedulerView


class Unstarted(NamedTuple):
    """A request that was never admitted."""

    tokens: int  # of its prompt
    since: float  # seconds, on the scheduler's clock


class QueueLimits:
    """Limits of the queue: its number of requests, their tokens, and the time they wait.

    Tokens and time count from submission to the first admission, parked or not; `tokens` is the
    sum of those prompts. The number of requests counts all that have no slot.
    """

    def __init__(self, config: QueueConfig, view: SchedulerView) -> None:
        self.tokens = 0
        self.draining = False  # are new requests refused?
        self.timeout_s = config.queue_timeout_s  # 0: none
        self._config, self._view = config, view
        self._unstarted: dict[str, Unstarted] = {}  # by request id, in order of submission

    @property
    def room(self) -> int:
        """Requests that could be queued now before `max_num_queued_reqs` is reached."""
        return self._config.max_num_queued_reqs - self._view.queued

    def refuse_excess(self, request: Request) -> None:
        """QueueFull if there are too many requests or tokens, or if the scheduler drains.

        A prompt may have any length if no other waits.
        """
        if self.draining:
            raise QueueFull("the scheduler is draining and takes no new requests")
        if self.room < 1:
            most = self._config.max_num_queued_reqs
            raise QueueFull(f"{most} requests are already waiting (max_num_queued_reqs)")
        most = self._config.max_queued_tokens
        if self.tokens and 0 < most < self.tokens + len(request.prompt):
            raise QueueFull(
                f"{self.tokens} tokens are already waiting; {len(request.prompt)} more would "
                f"exceed max_queued_tokens {most}"
            )

    def entered(self, request: Request, now: float) -> None:
        self._unstarted[request.id] = Unstarted(len(request.prompt), now)
        self.tokens += len(request.prompt)

    def left(self, request_id: str) -> None:
        """The request was admitted or ended; repeated calls are ignored."""
        if found := self._unstarted.pop(request_id, None):
            self.tokens -= found.tokens

    def overdue(self, now: float) -> Iterator[str]:
        """Requests that have waited longer than `queue_timeout_s`; each stops counting."""
        while self.timeout_s and self._unstarted:
            request_id, first = next(iter(self._unstarted.items()))
            if now - first.since <= self.timeout_s:
                return
            self.left(request_id)
            yield request_id

    def check(self, live: Mapping[str, Sequence]) -> None:
        """Verify that exactly the live requests that never had a slot are counted."""
        expected = [one.id for one in live.values() if not one.started]
        assert sorted(self._unstarted) == sorted(expected), "requests that have not started"
        assert self.tokens == sum(one.tokens for one in self._unstarted.values())


class Overdue(NamedTuple):
    """A sequence of a request that has waited too long, and the error message."""

    sequence: Sequence
    message: str


Timeout = Callable[[float], Iterator[Overdue]]
"""Yields the requests that are overdue at a time; the caller ends each before taking the next.

Timeouts are objects, not closures, so that checkpoints of the scheduler can hold them.
"""


@dataclass(frozen=True, slots=True)
class PolicyTimeout:
    """Ends requests that the policy calls late."""

    policy: Policy

    def __call__(self, now: float) -> Iterator[Overdue]:
        for sequence in self.policy.late(now):
            check_late(self.policy, sequence)
            yield Overdue(sequence, self.policy.too_late)


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
    """Create the timeouts of these settings, in the order in which they apply."""
    made: list[Timeout] = []
    if type(policy).late is not Policy.late:
        made.append(PolicyTimeout(policy))
    if limits.timeout_s:
        made.append(QueueTimeout(limits, live))
    return tuple(made)
