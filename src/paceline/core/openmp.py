"""Limits how long idle threads of OpenMP, which are torch's threads, spin before they sleep.

A thread that spins holds a core. Beside other busy processes, the threads that it waits for then
wait for that core, and a step takes several times as long.
"""

import os
from collections.abc import MutableMapping
from ctypes import CDLL, c_uint, c_void_p, cast
from pathlib import Path
from threading import Event, Thread

# An OpenMP library reads them once, when it is loaded. GNU's counts loop turns: 20,000 outlast the
# pauses between the operations of a step. That of LLVM and of Intel counts milliseconds.
LIMITS = {"GOMP_SPINCOUNT": "20000", "KMP_BLOCKTIME": "1"}
CHOSEN = ("OMP_WAIT_POLICY", *LIMITS)  # a user who sets one of them decides
MAPS = Path("/proc/self/maps")
EARLY: list[str] = []  # libraries that were loaded before the limits were set


def limit_spinning(environ: MutableMapping[str, str] = os.environ) -> None:
    """Set the limits for libraries that are loaded after this, here and in child processes."""
    if not any(name in environ for name in CHOSEN):
        EARLY.extend(loaded_libraries())
        environ.update(LIMITS)


def loaded_libraries(maps: Path = MAPS) -> list[str]:
    """Paths of the GNU OpenMP libraries that this process has loaded."""
    try:
        lines = maps.read_text(errors="replace").splitlines()
    except OSError:  # this system has no such file
        return []
    paths = {line.split(maxsplit=5)[-1] for line in lines if "libgomp" in line}
    return sorted(path for path in paths if Path(path).is_file())


def limit_early() -> None:
    """Let the threads of libraries that were loaded before `limit_spinning` sleep almost at once.

    A library spins 100 turns instead of 300,000 while it has more threads than there are cores.
    So each gets a team of that many threads, which sleep from then on.
    """
    while EARLY:
        ready = Event()
        Thread(target=_hold_team, args=(EARLY.pop(), ready), name="openmp", daemon=True).start()
        ready.wait()


def _hold_team(path: str, ready: Event) -> None:
    """A team lasts as long as the thread that created it."""
    library, nothing = CDLL(path), cast(CDLL(None).free, c_void_p)  # freeing NULL does nothing
    library.GOMP_parallel.argtypes = [c_void_p, c_void_p, c_uint, c_uint]
    library.GOMP_parallel(nothing, None, library.omp_get_num_procs() + 1, 0)
    ready.set()
    Event().wait()
