"""Those who were submitted and have not been begun: how many tokens, and for how long."""

from collections.abc import Iterator
from typing import NamedTuple

from paceline.core.errors import QueueFull
from paceline.core.request import Request


class Waiting(NamedTuple):
    """A request that nobody has begun."""

    tokens: int  # of its prompt
    since: float


class WaitingRoom:
    """In the order in which they came; `tokens` is the sum of their prompts.

    A request leaves when the first of its sequences is admitted, or when it ends.
    """

    def __init__(self, most_tokens: int, timeout_s: float) -> None:
        self.tokens = 0
        self._most_tokens, self._timeout_s = most_tokens, timeout_s  # 0: no limit
        self._waiting: dict[str, Waiting] = {}

    def check(self, request: Request) -> None:
        """QueueFull if it brings too many tokens. Alone it may be as long as it likes."""
        tokens = self.tokens + len(request.prompt)
        if self.tokens and 0 < self._most_tokens < tokens:
            raise QueueFull(
                f"{self.tokens} tokens are already waiting; {len(request.prompt)} more would "
                f"exceed max_queued_tokens {self._most_tokens}"
            )

    def enter(self, request: Request, now: float) -> None:
        self._waiting[request.id] = Waiting(len(request.prompt), now)
        self.tokens += len(request.prompt)

    def left(self, request_id: str) -> None:
        """It was admitted, or has ended, wherever it was."""
        if found := self._waiting.pop(request_id, None):
            self.tokens -= found.tokens

    def overdue(self, now: float) -> Iterator[str]:
        """Those who have waited for too long, who leave with it."""
        while self._timeout_s and self._waiting:
            request_id, first = next(iter(self._waiting.items()))
            if now - first.since <= self._timeout_s:
                return
            self.left(request_id)
            yield request_id
