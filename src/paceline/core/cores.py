"""The CPU of this machine, the cores that this process may use, and its waiting for them."""

import os
import platform
from contextlib import suppress
from pathlib import Path


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
