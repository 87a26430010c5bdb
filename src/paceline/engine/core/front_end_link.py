"""A front end in a process of its own, as the owner of the core sees it."""

import logging
from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread

from paceline.engine.core import wire
from paceline.engine.core.child_process import ChildProcess
from paceline.engine.core.front_end_wire import (
    FromFrontEnd,
    FrontEndBuild,
    FrontEndReady,
    ToFrontEnd,
    from_front_end,
)
from paceline.engine.core.messages import EngineFailed
from paceline.engine.core.process import settle

log = logging.getLogger(__name__)

CLOSE_S = 10.0  # for the process to exit by itself; then it is killed

Serve = Callable[["FrontEndLink", FromFrontEnd], None]
Left = Callable[["FrontEndLink"], None]


class FrontEndLink:
    """Any thread may send. From `start` on, a thread passes every message of the process to
    `serve`, and calls `left` once, after the last one."""

    def __init__(
        self, process: ChildProcess, build: FrontEndBuild, serve: Serve, left: Left
    ) -> None:
        self.number = build.number
        self.ready: Future[None] = Future()  # until it accepts connections
        self._serve, self._left = serve, left
        self._process = process
        self._reader = Thread(target=self._read, name=f"front end {self.number}", daemon=True)
        self.send(build)

    def start(self) -> None:
        """Begin to read its messages."""
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    @property
    def is_ready(self) -> bool:
        return self.ready.done() and self.ready.exception() is None

    def send(self, message: ToFrontEnd) -> None:
        self._process.send(wire.encoder.encode(message))

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        """Wait for the process to exit, which it has been asked to do, and release it."""
        self._process.wait(CLOSE_S)
        self._reader.join()
        self._process.close()

    def _read(self) -> None:
        try:
            while (frame := self._process.receive()) is not None:
                self._receive(from_front_end.decode(frame))
        except Exception:  # its requests would wait for ever
            log.exception("a message of a front end cannot be served; its process is killed")
            self._process.kill()
            self._process.wait(CLOSE_S)
        reason = f"a front end's process has ended with code {self.returncode}"
        settle(self.ready, None, EngineFailed(reason))
        self._left(self)

    def _receive(self, message: FromFrontEnd) -> None:
        if isinstance(message, FrontEndReady):
            settle(self.ready, None, message.fault and message.fault.error())
        self._serve(self, message)
