"""A tiny real model in a folder, and a server on a thread of its own."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Any

from tests.server.support import Site, served

PATIENCE_S = 60.0
SMALL = ("--kv-cache-gib", "0.01", "--max-num-seqs", "4")


@contextmanager
def serving(**settings: Any) -> Iterator[Site]:
    """For commands that have an event loop of their own, or are processes."""
    opened: Future[tuple[Site, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def main() -> None:
        over = asyncio.Event()
        async with served(**settings) as site:
            opened.set_result((site, asyncio.get_running_loop(), over))
            await over.wait()

    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(asyncio.run, main())
        site, loop, over = opened.result(PATIENCE_S)
        try:
            yield site
        finally:
            loop.call_soon_threadsafe(over.set)
            running.result(PATIENCE_S)


def wait_until(reached: Callable[[], bool]) -> None:
    give_up = monotonic() + PATIENCE_S
    while not reached():
        assert monotonic() < give_up, "it never came"
        sleep(0.005)
