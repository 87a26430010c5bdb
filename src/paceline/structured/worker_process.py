"""Worker processes that try grammars, from the side of their parent."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.reduction import send_handle
from threading import Lock
from time import thread_time
from typing import Any

import numpy as np

from paceline.core.constraint import Constraint
from paceline.core.errors import ConfigError, GrammarTooCostly, PacelineError
from paceline.structured.backend import GrammarBackend, Matcher
from paceline.structured.token_table import TokenTable

STEPS = 32  # tokens of the random output whose masks are timed


@dataclass(frozen=True, slots=True)
class Setup:
    """The first message to the process: what its workers need."""

    spelled: tuple[bytes, ...]
    eos: tuple[int, ...]
    backends: tuple[str, ...]  # that workers will be asked for
    memory_bytes: int  # that one constraint may take
    fill_s: float  # processor time that a mask may take on average


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Load a backend and fork a worker, whose pipe follows. The answer is its process id, or what
    is wrong with the backend."""

    backend: str


@dataclass(frozen=True, slots=True)
class EndWorker:
    """Kill a worker unless it has ended. The answer is its exit code: a signal, if negative."""

    pid: int


@dataclass(frozen=True, slots=True)
class GrammarTrial:
    """Try a constraint out. A worker answers with None or with what is wrong."""

    backend: str
    constraint: Constraint
    limit_s: float  # of processor time


def try_out(
    backend: GrammarBackend, table: TokenTable, constraint: Constraint, fill_s: float
) -> None:
    """Raise GrammarTooCostly if a mask takes more than `fill_s` of processor time on average."""
    matcher = backend.compile(constraint).matcher()
    mean_s = mean_fill_s(matcher, table)
    if mean_s > fill_s:
        raise GrammarTooCostly(
            f"the {constraint.kind} takes {mean_s * 1000:.1f} ms for each token, "
            f"more than {fill_s * 1000:g} ms"
        )


def mean_fill_s(matcher: Matcher, table: TokenTable, steps: int = STEPS) -> float:
    """The mean time of a mask along a random output, up to its end."""
    random = np.random.default_rng(0)
    row = np.zeros(table.words, np.int32)
    spent_s, fills = 0.0, 0
    for _ in range(steps):
        start = thread_time()
        matcher.fill(row)
        spent_s += thread_time() - start
        fills += 1
        bits = np.unpackbits((row & ~table.eos_row).view(np.uint8), bitorder="little")
        allowed = np.flatnonzero(bits)
        if not len(allowed) or not matcher.accept(int(random.choice(allowed))):
            break
    return spent_s / fills


START_S = 60.0  # for Python and its libraries
# Seconds by the clock that processor time may take on a busy machine: so many for each, and more.
BUSY, GRACE_S = 10.0, 1.0


class OutOfTime(GrammarTooCostly):
    """A constraint has taken all of the processor time that it was given."""


class WorkerNursery:
    """The process that forks workers. It is started for the first one, and again if it has died.

    Any thread may call it. One call at a time goes to the process.
    """

    def __init__(
        self, table: TokenTable, backends: tuple[str, ...], memory_bytes: int, fill_s: float
    ) -> None:
        self.memory_bytes = memory_bytes  # that one constraint may take
        self._setup = Setup(table.spelled, table.eos, backends, memory_bytes, fill_s)
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Any = None
        self._loaded: frozenset[str] = frozenset()  # backends that the process has

    def start(self, backend: str) -> "WorkerProcess":
        """A new worker that has a backend. ConfigError if the backend cannot be loaded."""
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._begin()
            ours, theirs = Pipe()
            assert self._process is not None
            try:
                self._pipe.send(StartWorker(backend))
                send_handle(self._pipe, theirs.fileno(), self._process.pid)
                answer = self._answer()
            except OSError:
                answer = None
            finally:
                theirs.close()
            if isinstance(answer, int):
                self._loaded |= {backend}
                return WorkerProcess(self, answer, ours, self._loaded)
            if answer is None:
                self._end()
        ours.close()
        raise answer or ConfigError(f"{backend} cannot be loaded in another process")

    def end(self, pid: int) -> int:
        """Kill a worker, and return its exit code."""
        with self._lock, suppress(OSError):
            if self._process is not None and self._process.poll() is None:
                self._pipe.send(EndWorker(pid))
                return self._answer() or 0
        return 0

    def close(self) -> None:
        """End the process and all workers."""
        with self._lock:
            self._end()

    def _begin(self) -> None:
        self._end()
        self._pipe, theirs = Pipe()
        search = os.pathsep.join(filter(None, sys.path))
        # Address space of threads that compute nothing would count as memory.
        alone = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "paceline.structured.worker", str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # warnings of libraries about each grammar
            pass_fds=[theirs.fileno()],
            env={**os.environ, **alone, "PYTHONPATH": search},
        )
        theirs.close()
        with suppress(OSError):  # the answer to the next message will be its end
            self._pipe.send(self._setup)

    def _answer(self) -> Any:
        """The next answer; None if the process has died or is stuck."""
        try:
            return self._pipe.recv() if self._pipe.poll(START_S) else None
        except (EOFError, ConnectionResetError):
            return None

    def _end(self) -> None:
        if self._process is None:
            return
        self._pipe.close()  # it kills its workers
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        self._process.kill()
        self._process.wait()
        self._process, self._loaded = None, frozenset()


class WorkerProcess:
    """Tries one constraint at a time. After `kill`, or when it has died, it is of no more use.

    One thread calls `check`; any thread may call `kill`.
    """

    def __init__(
        self, nursery: WorkerNursery, pid: int, pipe: Any, backends: frozenset[str]
    ) -> None:
        self.backends = backends  # that it can try
        self._nursery, self._pid, self._pipe = nursery, pid, pipe
        self._lock = Lock()
        self._killed = False

    def check(self, backend: str, constraint: Constraint, limit_s: float) -> None:
        """Raise a RequestError if the constraint does not compile, or not within the limits."""
        try:
            self._pipe.send(GrammarTrial(backend, constraint, limit_s))
            is_there = self._pipe.poll(limit_s * BUSY + GRACE_S)
            answer = self._pipe.recv() if is_there else TimeoutError()
        except (EOFError, OSError):
            answer = MemoryError()
        if answer is None:
            return
        if isinstance(answer, PacelineError):
            raise answer
        if self.close() == -signal.SIGPROF or isinstance(answer, TimeoutError):
            raise OutOfTime(
                f"the {constraint.kind} takes more than {limit_s:g} s to compile with {backend}"
            )
        most_mib = self._nursery.memory_bytes >> 20
        raise GrammarTooCostly(
            f"the {constraint.kind} takes more than {most_mib} MiB to compile with {backend}, or "
            f"{backend} has crashed"
        )

    @property
    def alive(self) -> bool:
        """Whether it can check another constraint. One that waits has said nothing but its end."""
        return not self._killed and not self._pipe.poll()

    def kill(self) -> None:
        with self._lock:
            if not self._killed:  # so its id belongs to it: the nursery has not waited for it
                self._killed = True
                with suppress(ProcessLookupError):  # the nursery has died, and it as well
                    os.kill(self._pid, signal.SIGKILL)

    def close(self) -> int:
        """Kill it unless it has ended, wait until it is gone, and return its exit code."""
        with self._lock:
            self._killed = True
            if self._pipe.closed:
                return 0
            self._pipe.close()
            return self._nursery.end(self._pid)
