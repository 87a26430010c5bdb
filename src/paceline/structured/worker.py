"""A process that tries grammars out: `python -m paceline.structured.worker FILE_DESCRIPTOR`.

A grammar that takes too long or too much memory ends this process and no other.
"""

import os
import resource
import signal
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from typing import Any

from paceline.core.errors import PacelineError
from paceline.structured.backend import GrammarBackend, load_backend
from paceline.structured.token_table import TokenTable
from paceline.structured.trial import try_out

STATM = Path("/proc/self/statm")


def main(descriptor: int) -> None:
    """Read one table and its limits, then constraints. Each is answered twice: when its backend is
    loaded, which takes time only once, and when it has been tried out. An error is the last answer
    to a constraint."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when this process ends
    Thread(target=die_with_parent, daemon=True).start()
    sys.modules["torch"] = None  # type: ignore[assignment]  # a library would import it in vain
    pipe: Connection[Any, Any] = Connection(descriptor)
    spelled, eos, memory_bytes, fill_s = pipe.recv()
    table = TokenTable(spelled, eos)
    backends: dict[str, GrammarBackend] = {}
    while True:
        try:
            name, constraint = pipe.recv()
            if name not in backends:
                backends[name] = load_backend(name, table)
            pipe.send(None)
            limit_memory(memory_bytes)
            try_out(backends[name], table, constraint, fill_s)
            pipe.send(None)
        except EOFError:
            return
        except (PacelineError, MemoryError) as error:
            pipe.send(error)
        lift_limits()


def limit_memory(further_bytes: int) -> None:
    """Allow so many bytes beyond what the process has now, where the system can."""
    if STATM.exists():
        pages = int(STATM.read_text().split()[0])
        most = pages * resource.getpagesize() + further_bytes
        resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))


def lift_limits() -> None:
    if STATM.exists():
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def die_with_parent() -> None:
    """Exit when stdin closes: the parent holds its other end until it exits or dies."""
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]))
