"""The process that grammars are tried out in: `python -m paceline.structured.worker DESCRIPTOR`.

It loads the libraries once and forks a worker wherever one is asked for. A grammar that takes too
long or too much memory ends its worker and nothing else, and the next worker is there in some
milliseconds.
"""

import os
import resource
import signal
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from pathlib import Path
from typing import Any, TypeAlias

from paceline.core.errors import PacelineError
from paceline.structured.backend import GrammarBackend, backend_class
from paceline.structured.token_table import TokenTable
from paceline.structured.worker_process import EndWorker, GrammarTrial, Setup, StartWorker, try_out

STATM = Path("/proc/self/statm")

Pipe: TypeAlias = "Connection[Any, Any]"


def main(descriptor: int) -> None:
    """Serve the parent until it closes its pipe or dies. There is one thread, since it forks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when this process ends
    sys.modules["torch"] = None  # type: ignore[assignment]  # a library would import it in vain
    parent: Pipe = Connection(descriptor)
    setup: Setup = parent.recv()
    nursery = Nursery(setup, TokenTable(setup.spelled, setup.eos))
    try:
        while True:
            match parent.recv():
                case StartWorker(backend):
                    parent.send(nursery.start(backend, recv_handle(parent), parent))
                    nursery.load_others()
                case EndWorker(pid):
                    parent.send(nursery.end(pid))
                case unknown:
                    raise AssertionError(unknown)
    except EOFError:
        nursery.end_all()


class Nursery:
    """Forks workers and waits for their ends. No id of a worker is used again before that."""

    def __init__(self, setup: Setup, table: TokenTable) -> None:
        self._setup, self._table = setup, table
        self._backends: dict[str, GrammarBackend] = {}
        self._workers: list[int] = []

    def start(self, backend: str, descriptor: int, parent: Pipe) -> int | PacelineError:
        try:
            self._load(backend)
            if not (pid := os.fork()):
                try:
                    parent.close()
                    self._work(Connection(descriptor))
                finally:
                    os._exit(0)  # whatever a library has raised
        except PacelineError as error:
            return error
        finally:
            os.close(descriptor)
        self._workers.append(pid)
        return pid

    def load_others(self) -> None:
        """Load what later workers need while nobody waits for one: not when a slow grammar is
        tried with the second library, and quick ones wait for a worker."""
        for backend in self._setup.backends:
            with suppress(PacelineError):  # the answer to who asks for it
                self._load(backend)

    def _load(self, backend: str) -> None:
        if backend not in self._backends:
            self._backends[backend] = backend_class(backend)(self._table)

    def end(self, pid: int) -> int:
        if pid not in self._workers:  # of an earlier process like this one, and gone with it
            return 0
        self._workers.remove(pid)
        os.kill(pid, signal.SIGKILL)  # one that has ended keeps its exit code
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def end_all(self) -> None:
        for pid in tuple(self._workers):
            self.end(pid)

    def _work(self, pipe: Pipe) -> None:
        """Answer trials until the parent closes its end."""
        while True:
            try:
                trial: GrammarTrial = pipe.recv()
                limit(trial.limit_s, self._setup.memory_bytes)
                backend = self._backends[trial.backend]
                try_out(backend, self._table, trial.constraint, self._setup.fill_s)
                answer: Exception | None = None
            except EOFError:
                return
            except (PacelineError, MemoryError) as error:
                answer = error
            lift_limits()
            pipe.send(answer)


def limit(processor_s: float, further_bytes: int) -> None:
    """Let the system end this process after so much processor time, and allow so many bytes beyond
    what it has now, where the system can."""
    signal.setitimer(signal.ITIMER_PROF, processor_s)
    if STATM.exists():
        pages = int(STATM.read_text().split()[0])
        most = pages * resource.getpagesize() + further_bytes
        resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))


def lift_limits() -> None:
    signal.setitimer(signal.ITIMER_PROF, 0)
    if STATM.exists():
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


if __name__ == "__main__":
    main(int(sys.argv[1]))
