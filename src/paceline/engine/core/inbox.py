"""Where requests wait until the engine's next turn."""

from threading import Condition

from paceline.core.errors import QueueFull
from paceline.engine.core.messages import Abort, Asked, Park, Submit, Wake

Message = Submit | Abort | Park | Wake | Asked


class Inbox:
    """Messages of any thread, in order; requests among them are bounded."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._changed = Condition()
        self._messages: list[Message] = []
        self._requests = 0
        self._nudged = False

    def put(self, message: Message) -> None:
        with self._changed:
            if isinstance(message, Submit):
                if self._requests >= self._limit:
                    raise QueueFull(f"{self._limit} requests already wait for the engine's turn")
                self._requests += 1
            self._messages.append(message)
            self._changed.notify()

    def drain(self) -> list[Message]:
        """Everything that came since the last time."""
        with self._changed:
            messages, self._messages = self._messages, []
            self._requests = 0
        return messages

    def wait(self, timeout_s: float | None) -> None:
        """Until there is a message, a nudge, or the time is over."""
        with self._changed:
            if not self._messages and not self._nudged:
                self._changed.wait(timeout_s)
            self._nudged = False

    def nudge(self) -> None:
        """Let the next wait end, or the present one."""
        with self._changed:
            self._nudged = True
            self._changed.notify()

    @property
    def room(self) -> int:
        """Requests that may still come."""
        return self._limit - self._requests

    def __bool__(self) -> bool:
        return bool(self._messages)
