"""Work that continues after its request has been answered."""

import asyncio
from asyncio import Future, get_running_loop
from collections import deque
from collections.abc import Coroutine
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

ENTRIES = 4  # a turn of the event loop; each takes up to a millisecond


class Turnstile:
    """Lets `most` tasks pass in each turn of the event loop; the others wait in line."""

    def __init__(self, most: int = ENTRIES) -> None:
        self._most = self._left = most
        self._line: deque[Future[None]] = deque()
        self._turns = False  # is it called in the next turn of the loop?

    async def enter(self) -> None:
        loop = get_running_loop()
        if not self._turns:
            self._turns = True
            loop.call_soon(self._turn)
        if self._left:
            self._left -= 1
            return
        passed = loop.create_future()
        self._line.append(passed)
        await passed

    def _turn(self) -> None:
        was_used, self._left = self._left < self._most, self._most
        while self._line and self._left:
            first = self._line.popleft()
            if not first.done():  # its task was not cancelled
                first.set_result(None)
                self._left -= 1
        self._turns = was_used or self._left < self._most
        if self._turns:
            get_running_loop().call_soon(self._turn)


class PacedRequests:
    """Requests with a body enter one after another; probes and metrics do not wait."""

    def __init__(self, app: ASGIApp, turnstile: Turnstile) -> None:
        self._app, self._turnstile = app, turnstile

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            await self._turnstile.enter()
        await self._app(scope, receive, send)


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
