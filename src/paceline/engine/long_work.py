"""Runs long work of requests on threads, so that the event loop stays free."""

import ctypes
from asyncio import get_running_loop
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import ParamSpec, TypeVar

THREADS = 2  # more would only compete with the event loop for the interpreter lock

P = ParamSpec("P")
T = TypeVar("T")


class LongWork:
    """Work waits for a free thread. Freed memory returns to the system when no work is left."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, "long-work")
        self._open = 0  # jobs that wait or run; only the event loop changes it

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the function on a thread. The call continues if the caller is cancelled."""
        loop = get_running_loop()
        self._open += 1
        job = loop.run_in_executor(self._threads, lambda: function(*args, **kwargs))
        job.add_done_callback(lambda _: self._done())
        return await job

    def _done(self) -> None:
        self._open -= 1
        if not self._open:
            self._threads.submit(return_free_memory)


def return_free_memory() -> None:
    """Return the free memory of the C heap to the system; only glibc can do that."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
