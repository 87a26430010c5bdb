"""The free memory of this machine."""

import os
from pathlib import Path

MEMINFO, GROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")


def free_bytes(meminfo: Path = MEMINFO, group: Path = GROUP) -> int:
    """Bytes that can be allocated without swapping, in the machine and in its container."""
    return min([_of_machine(meminfo), *_of_container(group)])


def _of_machine(meminfo: Path) -> int:
    """The page cache counts as free: the system drops it when memory is needed."""
    try:
        return 1024 * _numbers(meminfo)["MemAvailable:"]
    except (OSError, KeyError):  # this system has no /proc/meminfo
        pages = os.sysconf("SC_PHYS_PAGES") // 2  # how many are free is unknown
        return pages * os.sysconf("SC_PAGE_SIZE")


def _of_container(group: Path) -> list[int]:
    """Free bytes within the limits of cgroups, version 2 and version 1; empty without a limit."""
    found = [
        _within(group, "memory.max", "memory.current", "inactive_file"),
        _within(
            group / "memory",
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
            "total_inactive_file",
        ),
    ]
    return [one for one in found if one is not None]


def _within(folder: Path, limit: str, used: str, kept: str) -> int | None:
    try:
        most, in_use = (int((folder / name).read_text()) for name in (limit, used))
        return max(most - in_use + _numbers(folder / "memory.stat")[kept], 0)
    except (OSError, KeyError, ValueError):  # no such limit, or "max"
        return None


def _numbers(path: Path) -> dict[str, int]:
    """The first number of each line, by the word before it."""
    lines = (line.split() for line in path.read_text().splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1}
