"""How many requests may be queued, how many prompt tokens may wait, and for how long."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from paceline.core.config import QueueConfig
from paceline.core.errors import QueueFull
from paceline.core.request import Request, Sequence
from paceline.sched.view import SchedulerView


class Unstarted(NamedTuple):
    """A request that was submitted and not yet admitted."""

    tokens: int  # of its prompt
    since: float  # seconds, on the scheduler's clock


class QueueLimits:
    """The only place where requests are refused or ended because of the queue.

    Tokens and time count from submission to the first admission, parked or not: `tokens` is the
    sum of those prompts. The number of requests counts everything that has no slot.
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
        """QueueFull if the request is one too many, or brings too many tokens, or if the scheduler
        drains.

        A prompt that waits alone may have any length.
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
        """A sequence of the request was admitted, or the request ended; repeats are ignored."""
        if found := self._unstarted.pop(request_id, None):
            self.tokens -= found.tokens

    def overdue(self, now: float) -> Iterator[str]:
        """Requests that have waited longer than `queue_timeout_s`; they no longer count."""
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
