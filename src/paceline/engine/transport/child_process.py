"""A Python module in a child process, and messages to it and from it."""

import atexit
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory, gettempdir
from threading import Lock
from typing import Any

import zmq

from paceline.core.errors import ConfigError

MOST = 4096  # alarms that one `clear` takes


class Alarm:
    """A file descriptor that is readable from `ring`, on any thread, to `clear`."""

    def __init__(self) -> None:
        self._readable, self._writable = os.pipe()
        for end in (self._readable, self._writable):
            os.set_blocking(end, False)

    def fileno(self) -> int:
        return self._readable

    def ring(self) -> None:
        with suppress(BlockingIOError):  # a full pipe is readable already
            os.write(self._writable, b"!")

    def clear(self) -> None:
        with suppress(BlockingIOError):  # it was not rung
            os.read(self._readable, MOST)

    def close(self) -> None:
        os.close(self._readable)
        os.close(self._writable)


CLOSE_S = 10.0  # for a process to exit by itself; then it is killed
LONGEST_NAME = len("/paceline-12345678/out")  # of a socket in the temporary folder
POLL_MS = 50  # for the last messages of a process that is gone, and between two looks at one


@dataclass(frozen=True, slots=True)
class ProcessPlace:
    """Where a process runs."""

    cpus: tuple[int, ...] = ()  # the cores that it may use; empty: all
    variables: Mapping[str, str] = field(default_factory=dict[str, str])  # of its environment


ANYWHERE = ProcessPlace()


class ChildProcess:
    """Any thread may send; one thread receives. The child binds its sockets at the address that is
    its only argument, reads from `in` and writes to `out`, and exits when its stdin closes."""

    def __init__(
        self,
        module: str,
        files: Sequence[int] = (),
        place: ProcessPlace = ANYWHERE,
        arguments: Sequence[str] = (),
    ) -> None:
        check_temporary_folder()
        # Only this user can read it. It is deleted with this object.
        self._folder = TemporaryDirectory(prefix="paceline-", ignore_cleanup_errors=True)
        self._address = f"ipc://{self._folder.name}"
        self._context: zmq.Context[Any] = zmq.Context()
        self._context.linger = 0
        self._commands = self._connected(zmq.PUSH, "in")
        self._inbox = self._connected(zmq.PULL, "out")
        self._sending = Lock()
        self._poller = zmq.Poller()
        self._poller.register(self._inbox, zmq.POLLIN)
        path = os.pathsep.join(filter(None, sys.path))
        with pinned(place.cpus), without_interrupts():
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, self._address, *arguments],
                stdin=subprocess.PIPE,
                pass_fds=files,
                env={**os.environ, **place.variables, "PYTHONPATH": path},
            )
        self._exit = exit_notice(self._process.pid)
        if self._exit is not None:
            self._poller.register(self._exit, zmq.POLLIN)

    def _connected(self, kind: int, end: str) -> zmq.Socket[bytes]:
        """A socket that connects accepts messages before the other end binds."""
        socket = self._context.socket(kind)
        socket.set_hwm(0)
        socket.connect(f"{self._address}/{end}")
        return socket

    def send(self, frame: bytes) -> None:
        """Send a message; one to a closed child is dropped."""
        with self._sending:
            if not self._context.closed:
                self._commands.send(frame, zmq.NOBLOCK)

    def receive(self) -> bytes | None:
        """The next message; None after the last message of a process that is gone."""
        while True:
            alive = self.alive
            if alive:
                self._poller.poll(None if self._exit is not None else POLL_MS)
            if self._inbox.poll(0 if alive else POLL_MS):
                return self._inbox.recv()
            if not alive:
                return None

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    def kill(self) -> None:
        self._process.kill()

    def wait(self, timeout_s: float) -> None:
        """Wait for the process to exit; it is killed after `timeout_s`."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def close(self) -> None:
        """Release the sockets, once the process has exited and no thread receives. It may be called
        again."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        with self._sending:
            self._context.destroy()
            notice, self._exit = self._exit, None
        if notice is not None:
            os.close(notice)
        self._folder.cleanup()


CORE = "paceline.engine.transport.process_main"
_begun: list[ChildProcess] = []


def begin_core(factory: str) -> None:
    """Start the process of a core before its settings are known: it imports what builds its engine,
    beside this process, and ends before its folder is deleted."""
    _begun.append(ChildProcess(CORE, arguments=[factory]))
    atexit.register(discard_begun)


def core_process(place: ProcessPlace) -> ChildProcess:
    """The process of a core: the one that was begun, if it may run there."""
    if _begun and place == ANYWHERE:
        return _begun.pop()
    discard_begun()
    return ChildProcess(CORE, place=place)


def discard_begun() -> None:
    """No core needs the process that was begun."""
    while _begun:
        one = _begun.pop()
        one.kill()
        one.wait(CLOSE_S)
        one.close()


def exit_notice(pid: int) -> int | None:
    """A file descriptor that is readable once a child has exited; None if the system has none."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


@contextmanager
def pinned(cpus: Sequence[int]) -> Generator[None]:
    """Limit this thread, and with it the processes that it starts, to some cores."""
    if not cpus:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def without_interrupts() -> Generator[None]:
    """Let processes that are started here never see that a terminal interrupts them: the parent
    decides when they end. An interrupt of this process comes afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def check_temporary_folder() -> None:
    """ConfigError if its path is too long for the sockets of a child."""
    folder, longest = gettempdir(), zmq.IPC_PATH_MAX_LEN - LONGEST_NAME
    if len(os.fsencode(folder)) > longest:
        raise ConfigError(
            f"the path of the temporary folder {folder!r} is longer than {longest} bytes, too long "
            "for sockets in it; set TMPDIR to another folder"
        )
