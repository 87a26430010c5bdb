"""Commands of other threads, until the engine's next turn."""

from threading import Condition

from paceline.core.errors import QueueFull
from paceline.engine.core.messages import Command, Submit


class Inbox:
    """Keeps commands in order; at most `limit` requests among them."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._changed = Condition()
        self._commands: list[Command] = []
        self._requests = 0
        self._nudged = False

    def put(self, command: Command) -> None:
        with self._changed:
            if isinstance(command, Submit):
                if self._requests >= self._limit:
                    raise QueueFull(too_many(self._limit))
                self._requests += 1
            self._commands.append(command)
            self._changed.notify()

    def drain(self) -> list[Command]:
        """Every command since the previous call."""
        with self._changed:
            commands, self._commands = self._commands, []
            self._requests = 0
        return commands

    def wait(self, timeout_s: float | None) -> None:
        """Return when there is a command or a nudge, or after `timeout_s`."""
        with self._changed:
            if not self._commands and not self._nudged:
                self._changed.wait(timeout_s)
            self._nudged = False

    def nudge(self) -> None:
        """End the present wait, or the next one."""
        with self._changed:
            self._nudged = True
            self._changed.notify()

    @property
    def room(self) -> int:
        """Requests that could be put now."""
        return self._limit - self._requests

    def __bool__(self) -> bool:
        return bool(self._commands)


def too_many(limit: int) -> str:
    return f"{limit} requests already wait for the engine's next turn (inbox_requests)"
