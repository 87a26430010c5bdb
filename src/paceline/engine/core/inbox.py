"""Messages to an engine, until its next turn."""

from collections import deque
from collections.abc import Callable
from threading import Condition
from typing import Any, Generic, TypeVar

from paceline.core.errors import QueueFull

T = TypeVar("T")


def silent() -> None:
    """`wait` returns anyway."""


class Inbox(Generic[T]):
    """Keeps messages in order; at most `limit` of them are requests, objects of `request`."""

    def __init__(self, limit: int, request: type[Any]) -> None:
        self._limit, self._request = limit, request
        self._changed = Condition()
        self._messages: deque[T] = deque()
        self.requests = 0  # of the messages
        self.alarm: Callable[[], None] = silent  # called with each message, on any thread

    def put(self, message: T) -> None:
        with self._changed:
            if isinstance(message, self._request):
                if self.requests >= self._limit:
                    raise QueueFull(too_many(self._limit))
                self.requests += 1
            self._messages.append(message)
            self._changed.notify()
        self.alarm()

    def drain(self, most: int | None = None) -> list[T]:
        """The oldest messages, with at most so many requests; without `most`, all messages."""
        with self._changed:
            if most is None or self.requests <= most:
                taken, self.requests = list(self._messages), 0
                self._messages.clear()
                return taken
            left, taken = self.requests - most, list[T]()
            while self.requests > left:
                taken.append(self._messages.popleft())
                self.requests -= isinstance(taken[-1], self._request)
            return taken

    def wait(self, timeout_s: float | None) -> None:
        """Return when there is a message, or after `timeout_s`."""
        with self._changed:
            if not self._messages:
                self._changed.wait(timeout_s)

    def __bool__(self) -> bool:
        return bool(self._messages)


def too_many(limit: int) -> str:
    return f"{limit} requests already wait for the engine's next turn (inbox_requests)"
