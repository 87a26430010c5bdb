"""Runs long work of requests on threads, so that the event loop stays free."""

import ctypes
from asyncio import TimerHandle, get_running_loop
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from signal import SIGINT, getsignal, signal
from threading import current_thread, main_thread
from types import FrameType
from typing import ParamSpec, TypeVar


@contextmanager
def interrupts_deferred() -> Generator[Callable[[], None]]:
    """Defer the first interrupt to the end of the block, or to the next call of the function that
    the block gets. A second one is not deferred."""
    usual = getsignal(SIGINT)
    if not callable(usual) or current_thread() is not main_thread():
        yield lambda: None
        return
    came: list[FrameType | None] = []

    def note(_: int, frame: FrameType | None) -> None:
        came.append(frame)
        signal(SIGINT, usual)

    def handle() -> None:
        if came:
            usual(SIGINT, came.pop())
            signal(SIGINT, note)  # it did not raise

    signal(SIGINT, note)
    try:
        yield handle
    finally:
        signal(SIGINT, usual)
        for frame in came:
            usual(SIGINT, frame)


IDLE_S = 0.5  # without work, until freed memory is returned: results are in use for a moment
THREADS = 2  # more would only compete with the event loop for the interpreter lock
THREAD_NAME = "long-work"

P = ParamSpec("P")
T = TypeVar("T")


class LongWork:
    """Work waits for a free thread. Freed memory returns to the system after the last work."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, THREAD_NAME)
        self._returning: TimerHandle | None = None

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the function on a thread. The call continues if the caller is cancelled."""
        loop = get_running_loop()
        job = loop.run_in_executor(self._threads, lambda: function(*args, **kwargs))
        job.add_done_callback(lambda _: self._done())
        return await job

    def _done(self) -> None:
        if self._returning is not None:
            self._returning.cancel()
        returned = self._threads.submit, return_free_memory
        self._returning = get_running_loop().call_later(IDLE_S, *returned)


def return_free_memory() -> None:
    """Return the free memory of the C heap to the system; only glibc can do that."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
