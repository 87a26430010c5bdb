"""How much memory of this machine is free for us."""

import os
from pathlib import Path

MEMINFO, GROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")


def free_bytes(meminfo: Path = MEMINFO, group: Path = GROUP) -> int:
    """What can be had without swapping, in this machine and in the container that we are in."""
    return min([_of_machine(meminfo), *_of_container(group)])


def _of_machine(meminfo: Path) -> int:
    """Files that the system keeps in memory count as free: it lets them go."""
    try:
        return 1024 * _numbers(meminfo)["MemAvailable:"]
    except (OSError, KeyError):  # not every system has it
        pages = os.sysconf("SC_PHYS_PAGES") // 2  # nobody tells how many are free
        return pages * os.sysconf("SC_PAGE_SIZE")


def _of_container(group: Path) -> list[int]:
    """By the files of today and by those of old systems. Nothing where there is no limit."""
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
    except (OSError, KeyError, ValueError):  # `max` is no number
        return None


def _numbers(path: Path) -> dict[str, int]:
    """By the word in front of each."""
    lines = (line.split() for line in path.read_text().splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1}
