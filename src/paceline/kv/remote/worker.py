"""A thread that does one thing after another."""

from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread


class Worker:
    """Calls functions in the order in which it gets them. `close` drops those that wait."""

    def __init__(self, name: str) -> None:
        self._waiting: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._closing = False
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def do(self, work: Callable[[], None]) -> None:
        self._waiting.put(work)

    def close(self) -> None:
        """Wait for what it does now."""
        self._closing = True
        self._waiting.put(lambda: None)
        self._thread.join()

    def _run(self) -> None:
        while not self._closing:
            self._waiting.get()()
