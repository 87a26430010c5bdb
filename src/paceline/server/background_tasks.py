"""Work that continues after its request has been answered."""

import asyncio
from collections.abc import Coroutine
from typing import Any


class BackgroundTasks:
    """Tasks by the id of their request. A task is kept until it ends."""

    def __init__(self) -> None:
        self._running: dict[str, asyncio.Task[None]] = {}

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        task = self._running[name] = asyncio.create_task(work)
        task.add_done_callback(lambda _: self._running.pop(name, None))

    def __contains__(self, name: str) -> bool:
        return name in self._running

    async def ended(self, name: str, most_s: float | None = None) -> None:
        """Wait for the end of a task, if it runs, for `most_s` at most."""
        if (task := self._running.get(name)) is not None:
            await asyncio.wait([task], timeout=most_s)
