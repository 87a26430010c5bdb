"""The start of an engine: where its time goes, and what can begin before the imports have ended."""

import logging
import os
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from ctypes import CDLL, byref, c_int, c_void_p
from importlib.machinery import PathFinder
from pathlib import Path
from threading import Thread
from time import perf_counter
from typing import Any

log = logging.getLogger(__name__)

CUDA = "libcuda.so.1"
# What builds an engine. By name: importing it takes seconds and memory that a front end does not
# need.
FACTORY = "paceline.wiring.assembly:build"


class StartTimes:
    """Seconds of the phases of a start, in their order. Each phase is a line of the log."""

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self.seconds: dict[str, float] = {}
        self._clock = clock

    @contextmanager
    def phase(self, name: str) -> Generator[None]:
        """What is done inside is this phase. A phase that repeats adds up."""
        begin = self._clock()
        try:
            yield
        finally:
            self.add(name, self._clock() - begin)

    def add(self, name: str, seconds: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds
        log.info("start: %s took %.2f s", name, seconds)

    def __str__(self) -> str:
        parts = (f"{name} {seconds:.2f}" for name, seconds in self.seconds.items())
        return f"{sum(self.seconds.values()):.2f} s: {', '.join(parts)}"


START = StartTimes()  # of this process


def process_age_s(proc: Path = Path("/proc")) -> float:
    """Seconds since this process began; 0 where the system does not say."""
    with suppress(OSError, ValueError, IndexError):
        ticks = int((proc / "self/stat").read_text().rpartition(")")[2].split()[19])
        now = float((proc / "uptime").read_text().split()[0])
        return max(now - ticks / os.sysconf("SC_CLK_TCK"), 0.0)
    return 0.0


def begin_early(model: str, settings: Mapping[str, Any]) -> None:
    """Create the context of the GPU and load libraries on threads, while this one imports torch,
    which takes longer, and have the system read the weights ahead."""
    Thread(target=load_libraries, name="libraries", daemon=True).start()
    read_ahead(weight_files(model))
    ranks = settings.get("tensor_parallel_size") or 1  # each takes a GPU of its own, later
    if (settings.get("device") or "auto") != "cpu" and ranks == 1:
        Thread(target=create_context, name="cuda context", daemon=True).start()


def create_context(library: str = CUDA) -> bool:
    """Create the primary context of the first GPU, which torch takes over. False without one."""
    try:
        driver = CDLL(library)  # its calls run beside other Python threads
    except OSError:
        return False
    device, context = c_int(), c_void_p()
    return not (
        driver.cuInit(0)
        or driver.cuDeviceGet(byref(device), 0)
        or driver.cuDevicePrimaryCtxRetain(byref(context), device)
    )


def load_libraries() -> None:
    """Load the libraries of torch beside Python; its import finds them loaded."""
    if (torch := PathFinder.find_spec("torch")) is not None and torch.origin is not None:
        with suppress(OSError):
            CDLL(str(Path(torch.origin).parent / "lib" / "libtorch.so"))


def read_ahead(files: Iterable[Path]) -> None:
    """Let the system read files into memory, and do not wait for it."""
    for file in files:
        with suppress(OSError, AttributeError):  # not on every system
            descriptor = os.open(file, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)
            finally:
                os.close(descriptor)


def weight_files(model: str) -> list[Path]:
    """The files of a model that is a path; empty for a name."""
    path = Path(model).expanduser()
    if path.is_dir():
        return sorted(path.glob("*.safetensors"))
    return [path] if path.is_file() else []
