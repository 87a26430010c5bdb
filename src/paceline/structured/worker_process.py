"""The process that tries grammars out, as its parent sees it."""

import os
import subprocess
import sys
from contextlib import suppress
from multiprocessing import Pipe
from typing import Any

from paceline.core.constraint import Constraint
from paceline.core.errors import ConfigError, GrammarTooCostly, PacelineError
from paceline.structured.token_table import TokenTable

START_S = 60.0  # for Python and its libraries


class WorkerProcess:
    """Tries one constraint at a time. After `kill`, or when it has died, it is of no more use.

    One thread calls `check`; any thread may call `kill`.
    """

    def __init__(self, table: TokenTable, memory_bytes: int, fill_s: float) -> None:
        self._memory_bytes = memory_bytes
        self._killed = False
        self._pipe, other = Pipe()
        search = os.pathsep.join(filter(None, sys.path))
        # Address space of threads that compute nothing would count as memory.
        alone = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "paceline.structured.worker", str(other.fileno())],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # warnings of libraries about each grammar
            pass_fds=[other.fileno()],
            env={**os.environ, **alone, "PYTHONPATH": search},
        )
        other.close()
        self._send((table.spelled, table.eos, memory_bytes, fill_s))

    def check(self, backend: str, constraint: Constraint, limit_s: float) -> None:
        """Raise a RequestError if the constraint does not compile, or not within the limits."""
        self._send((backend, constraint))
        self._answer(START_S, ConfigError(f"{backend} cannot be loaded in another process"))
        too_long = f"the {constraint.kind} takes more than {limit_s:g} s to compile with {backend}"
        too_large = (
            f"the {constraint.kind} takes more than {self._memory_bytes >> 20} MiB to compile "
            f"with {backend}, or {backend} has crashed"
        )
        self._answer(limit_s, GrammarTooCostly(too_large), GrammarTooCostly(too_long))

    @property
    def alive(self) -> bool:
        return not self._killed and self._process.poll() is None

    def kill(self) -> None:
        self._killed = True
        self._process.kill()

    def close(self) -> None:
        """Kill it and wait until it is gone."""
        self.kill()
        self._process.wait()
        self._pipe.close()
        assert self._process.stdin is not None
        self._process.stdin.close()

    def _send(self, message: Any) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # the answer will be its end
            self._pipe.send(message)

    def _answer(
        self, limit_s: float, died: PacelineError, too_late: PacelineError | None = None
    ) -> None:
        """Wait for an answer, and raise what it or its absence means."""
        if not self._pipe.poll(limit_s):
            self.kill()
            raise too_late or died
        try:
            answer = self._pipe.recv()
        except (EOFError, ConnectionResetError):
            answer = MemoryError()
        if isinstance(answer, MemoryError):
            self.kill()
            raise died
        if isinstance(answer, PacelineError):
            raise answer
