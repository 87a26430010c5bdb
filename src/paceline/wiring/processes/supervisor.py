"""Runs several front ends over one core, and replaces those that end."""

import logging
import math
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from queue import Empty, SimpleQueue
from signal import SIGINT, SIGTERM, signal
from threading import current_thread, main_thread
from time import monotonic
from typing import Any

import msgspec

from paceline.core.settings.load import LoadConfig
from paceline.engine.choice_rows import MOST_FRONT_ENDS
from paceline.engine.loop.messages import EngineFailed
from paceline.engine.settings import CoreSettings
from paceline.engine.transport.child_process import ChildProcess
from paceline.engine.transport.front_end_link import DrainFrontEnd, FrontEndBuild, FrontEndLink
from paceline.engine.transport.restart import RestartBudget
from paceline.engine.transport.shared_core import ForwardingCore, SharedCore
from paceline.engine.transport.wire import plain
from paceline.server.scoreboard import shared_board
from paceline.server.settings import ServerSettings


@dataclass(frozen=True, slots=True)
class FrontEndSettings:
    """Sent to the process, not written on its command line, where others could read the keys.

    model         what is served: a name, a path or a repository
    path          its files
    load          settings of loading
    server        settings of the server
    cache_labels  further labels of the metric cache_config_info
    given         settings of the engine, as they were given
    sockets       file descriptors of the sockets to accept connections at
    board         file descriptor of the figures of all processes
    row           of this process in them
    """

    model: str
    path: str
    load: LoadConfig
    server: ServerSettings
    cache_labels: dict[str, Any]
    given: dict[str, Any]
    sockets: tuple[int, ...]
    board: int
    row: int = 0


log = logging.getLogger("paceline.server")

MODULE = "paceline.wiring.processes.front_end_main"
SIGNALS = (SIGINT, SIGTERM)
GENTLE_SIGNALS = 2  # the next one kills
CLOSE_S = 10.0  # for a process to end, after its requests have ended or it was killed
HEALTH_S = 0.1  # between two looks at the health of the core

Event = int | FrontEndLink | str  # a signal; a front end that has ended; why the core is gone


class IdleProcesses:
    """Processes that import what a front end needs, while the core loads the model, and wait for
    their settings. They inherit `files`."""

    def __init__(self, files: Sequence[int], processes: int) -> None:
        self._files = files
        self._waiting = [ChildProcess(MODULE, files) for _ in range(processes)]

    def take(self) -> ChildProcess:
        """One of them, or a new one."""
        return self._waiting.pop() if self._waiting else ChildProcess(MODULE, self._files)

    def close(self) -> None:
        """End those that were not taken."""
        while self._waiting:
            one = self._waiting.pop()
            one.kill()
            one.wait(CLOSE_S)
            one.close()


class Supervisor:
    """Keeps `settings.server.api_server_count` front ends, one for each row of the scoreboard.

    The first signal drains them, the second ends their wait, and the third kills them. One that
    is stuck is killed after that wait.
    """

    def __init__(
        self,
        core: ForwardingCore,
        settings: FrontEndSettings,
        limits: CoreSettings,
        idle: IdleProcesses,
    ) -> None:
        self._settings, self._capacity, self._idle = settings, core.ready(), idle
        self._numbers = count()
        self._links: dict[int, FrontEndLink] = {}  # by row
        self._events: SimpleQueue[Event] = SimpleQueue()  # from signals and other threads
        self._signals = 0
        self._kill_at = math.inf  # when front ends that do not end are killed
        self._budget = RestartBudget(limits.core_restarts, limits.core_restart_span_s)
        self._failure = ""
        self._board = shared_board(settings.board, -1, self._capacity.engines)
        self._shared = SharedCore(core, self._board.own("core"), self._events.put)

    def start(self) -> None:
        """Start the front ends, and wait until all accept connections. Raises their error."""
        for row in range(self._settings.server.api_server_count):
            self._start(row)
        for link in self._links.values():
            link.ready.result()

    def run(self) -> None:
        """Until the last front end has ended. EngineFailed if that was not asked for."""
        with self._signals_noted():
            while self._links:
                try:
                    self._handle(self._events.get(timeout=HEALTH_S))
                except Empty:
                    self._shared.check_health()
                    self._kill_stuck()
        if self._failure:
            raise EngineFailed(self._failure)

    def close(self) -> None:
        """Kill the front ends that are left. The caller closes the core."""
        for row in [*self._links]:
            self._links[row].kill()
            self._remove(row)

    @contextmanager
    def _signals_noted(self) -> Generator[None]:
        """Only the main thread receives signals."""
        if current_thread() is not main_thread():
            yield
            return
        before = {one: signal(one, lambda number, _: self._events.put(number)) for one in SIGNALS}
        try:
            yield
        finally:
            for one, usual in before.items():
                signal(one, usual)

    def _start(self, row: int) -> None:
        settings = replace(self._settings, row=row)
        number = next(self._numbers) % MOST_FRONT_ENDS
        build = FrontEndBuild(number, self._capacity, msgspec.to_builtins(settings, enc_hook=plain))
        link = FrontEndLink(self._idle.take(), build, self._shared.serve, self._events.put)
        self._links[row] = link
        self._shared.join(link)
        link.start()

    def _remove(self, row: int) -> None:
        link = self._links.pop(row)
        self._shared.leave(link)
        link.close()
        self._board.clear_gauges(row)

    def _handle(self, event: Event) -> None:
        match event:
            case FrontEndLink():
                self._replace(event)
            case str(reason):
                self._fail(reason)
            case int():
                self._drain()

    def _drain(self) -> None:
        self._signals += 1
        wait_s = self._settings.server.drain_s if self._signals == 1 else 0.0
        self._kill_at = monotonic() + wait_s + CLOSE_S
        for link in self._links.values():
            if self._signals > GENTLE_SIGNALS:
                link.kill()
            else:
                link.send(DrainFrontEnd(hurry=self._signals == GENTLE_SIGNALS))

    def _kill_stuck(self) -> None:
        if monotonic() >= self._kill_at:
            self._kill_at = math.inf
            for link in self._links.values():
                log.warning("front end %d does not end, and is killed", link.pid)
                link.kill()

    def _fail(self, reason: str) -> None:
        log.error("the server exits: %s", reason)
        self._failure = reason
        self._drain()

    def _replace(self, link: FrontEndLink) -> None:
        """Start the successor of a front end that has ended; one that drained is no failure."""
        row = next(row for row, one in self._links.items() if one is link)
        self._remove(row)
        if self._signals:
            return
        reason = f"a front end's process has ended with code {link.returncode}"
        if error := link.ready.exception():
            reason = f"a front end cannot start: {error}"
        if link.returncode == 0 or self._budget.take():
            log.warning("%s; another one is started", reason)
            self._start(row)
        else:
            self._fail(reason)
