"""The machine: its processors, the garbage collector, and the threads of OpenMP.

A thread that spins holds a core. Beside other busy processes, the threads that it waits for then
wait for that core, and a step takes several times as long.
"""

import gc
import os
import platform
from collections.abc import Generator, MutableMapping
from contextlib import contextmanager, suppress
from ctypes import CDLL, c_uint, c_void_p, cast
from pathlib import Path
from threading import Event, Thread


def usable_cores() -> int:
    """Fewer than the machine has, if the system limits this process to some of them."""
    if hasattr(os, "sched_getaffinity"):  # not on every system
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def processor_name() -> str:
    return in_cpuinfo("model name") or platform.processor() or platform.machine()


def waited_s() -> float:
    """Seconds for which threads of this process were ready to run and had no core; 0 where the
    system does not count them."""
    waited_ns = 0
    for path in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError, ValueError, IndexError):  # a thread may have ended meanwhile
            waited_ns += int(path.read_text().split()[1])
    return waited_ns / 1e9


def in_cpuinfo(wanted: str) -> str | None:
    """The first entry of a name in /proc/cpuinfo; its names differ by architecture."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == wanted:
                return value.strip()
    return None


# New objects between two searches of the youngest; such searches between two of the middle
# generation; those between two searches of all. The last take 100 ms with 1,000 open requests.
THRESHOLDS = 1000, 10, 1000


@contextmanager
def collection_paused() -> Generator[None]:
    """Imports and vocabularies create a million objects, all of which would be searched often."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def keep_heap() -> None:
    """Never search the objects that exist now: they stay. Search all newer ones rarely.

    Call it when everything is loaded, in a process that serves requests.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)


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
