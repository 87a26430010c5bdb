"""A thread that does one thing after another."""

import logging
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread

log = logging.getLogger(__name__)


class Worker:
    """Calls functions in the order in which it gets them. `close` drops those that wait.

    One that raises is logged, and the next one is called.
    """

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
            work = self._waiting.get()
            try:
                work()
            except Exception:
                log.exception("a transfer of KV failed in the thread of its connector")
