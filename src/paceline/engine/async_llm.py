"""An engine for an event loop: streams of text while the step loop runs elsewhere."""

from asyncio import AbstractEventLoop, Event, get_running_loop, timeout, to_thread, wrap_future
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import Any, Literal

from paceline.core.request import Finish
from paceline.engine.api import Ask, Report
from paceline.engine.core.components import Parts
from paceline.engine.core.messages import Delivery, EngineFailed, Question, Verb
from paceline.engine.core.ports import Core
from paceline.engine.core.thread import ThreadCore
from paceline.engine.frontend.frontend import Frontend
from paceline.engine.frontend.metrics import NOBODY, first_figures
from paceline.engine.frontend.stream import Mailbox, PieceStream

TICK_S = 0.001  # a loop's clock may be coarser than ours
LONG_TEXT = 4096  # characters, whose tokens take a millisecond or so
STATS_S = 2.0  # after which figures of a while ago have to do


class AsyncLLM:
    """See `api.AsyncEngine`. The core begins to run when the event loop first asks for something.

    The front end belongs to the event loop. The core's thread only leaves deliveries in
    `_outbox` and rings once, so it never waits for anybody here.
    """

    def __init__(self, core: Core, frontend: Frontend) -> None:
        self._core, self._frontend = core, frontend
        self._loop: AbstractEventLoop | None = None
        self._outbox: deque[Delivery] = deque()
        self._rung = False
        self._lock = Lock()
        self._quiet = Event()  # is no request open?
        self._gone = Event()
        self._end = ""  # why it is gone for good
        capacity = core.ready()
        frontend.max_model_len = capacity.max_model_len
        self._figures = first_figures(capacity)  # the latest answer to "gauges"

    @classmethod
    def of(cls, parts: Parts) -> "AsyncLLM":
        """With the step loop on a thread of this process."""
        engine = parts.engine()
        return cls(ThreadCore(engine), parts.frontend(engine))

    @property
    def max_model_len(self) -> int:
        return self._frontend.max_model_len

    # -- requests -----------------------------------------------------------

    async def encoded(self, ask: Ask) -> Ask:
        """With the token ids of its text. A long text is read on a thread, while others go on."""
        text = self._frontend.text_of(ask)
        if text is None:
            return ask
        read = partial(self._frontend.ids_of, text, framed=ask.messages is None)
        short = min(LONG_TEXT, self._frontend.max_model_len)
        ids = read() if len(text) <= short else await to_thread(read)
        return replace(ask, prompt=None, messages=None, prompt_token_ids=ids, text=text)

    def generate(self, ask: Ask) -> PieceStream:
        self._attach()
        mailbox = Mailbox()
        request = self._frontend.begin(ask, mailbox)
        try:
            self._core.submit(request)
        except BaseException:
            self._frontend.drop(request.id)
            raise
        self._quiet.clear()
        if ask.timeout is not None:
            get_running_loop().call_later(ask.timeout + TICK_S, self._expire)
        ids = tuple(request.prompt.tolist())
        return PieceStream(request.id, ids, mailbox, self._core.abort)

    async def abort(self, request_id: str) -> bool:
        if request_id not in self._frontend.open:
            return False
        self._core.abort(request_id)
        return True

    # -- questions ----------------------------------------------------------

    async def explain(self, request_id: str) -> str:
        return await self._ask("explain", request_id)

    async def snapshot(self) -> dict[str, Any]:
        return await self._ask("snapshot")

    async def stats(self) -> Report:
        """Also when the core does not answer: its latest totals, and nobody in one that died."""
        try:
            async with timeout(STATS_S):
                self._figures = await self._ask("gauges")
        except TimeoutError:
            pass
        except EngineFailed:
            self._figures = self._figures | NOBODY
        return self._frontend.metrics.report(self._figures)

    async def pause(self, mode: Literal["new", "all"] = "new") -> None:
        await self._ask("pause", mode)

    async def resume(self) -> None:
        await self._ask("resume")

    async def drain(self) -> None:
        await self._ask("drain")
        while self._frontend.open:
            await self._quiet.wait()

    async def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        running = "running" if reset_running_requests else ""
        return await self._ask("reset_prefix_cache", running)

    def healthy(self) -> str | None:
        return self._core.healthy()

    @property
    def last_failure_s(self) -> float | None:
        return self._frontend.last_failure_s

    async def gone(self) -> str:
        self._attach()
        await self._gone.wait()
        return self._end

    async def shutdown(self) -> None:
        await to_thread(self._core.close)
        self._pump()
        self._frontend.end_all(Finish.ABORT)
        self._quiet.set()

    async def _ask(self, verb: Verb, argument: str = "") -> Any:
        self._attach()
        return await wrap_future(self._core.ask(Question(verb, argument)))

    # -- from the core's thread ---------------------------------------------

    def deliver(self, delivery: Delivery) -> None:
        with self._lock:
            self._outbox.append(delivery)
            rings, self._rung = not self._rung, True
        if rings:
            self._call(self._pump)

    def died(self, reason: str, for_good: bool) -> None:
        self._call(self._mourn, reason, for_good)

    def _call(self, function: Callable[..., None], *arguments: str | bool) -> None:
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop was closed, and nobody listens any more
            self._loop.call_soon_threadsafe(function, *arguments)

    # -- on the event loop --------------------------------------------------

    def _attach(self) -> None:
        loop = get_running_loop()
        if self._loop is None:
            self._loop = loop
            self._core.start(self)
        elif self._loop is not loop:
            raise EngineFailed("the engine belongs to another event loop; make one for each")

    def _pump(self) -> None:
        """Pass on everything that was delivered."""
        with self._lock:
            deliveries, self._outbox = self._outbox, deque()
            self._rung = False
        for delivery in deliveries:
            for one in self._frontend.deliver(delivery):
                self._core.abort(one.request_id, one.child)
        if not self._frontend.open:
            self._quiet.set()

    def _expire(self) -> None:
        self._pump()  # what came in time counts
        for name in self._frontend.expire():
            self._core.abort(name)
        if not self._frontend.open:
            self._quiet.set()

    def _mourn(self, reason: str, for_good: bool) -> None:
        """All who are here end, also one that came so late that the next core has it."""
        self._pump()
        self._frontend.metrics.crashed()
        for name in self._frontend.end_all(Finish.ERROR, reason):
            self._core.abort(name)
        self._quiet.set()
        if for_good:
            self._end = reason
            self._gone.set()
