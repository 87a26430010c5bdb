"""CPU time of a server by process: the core, the front ends, and what started them."""

import os
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
CORE = b"paceline.engine.core.process_main"  # on the command line of the core's process


def cpu_s(pid: int) -> dict[int, float]:
    """Seconds of CPU time so far of a process and of its descendants, by process id."""
    parents: dict[int, int] = {}
    spent: dict[int, float] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (fields := stat_of(folder)):
            one = int(folder.name)
            parents[one] = int(fields[1])
            spent[one] = (int(fields[11]) + int(fields[12])) / TICKS_PER_S
    return {one: taken for one, taken in spent.items() if is_below(one, pid, parents)}


def stat_of(folder: Path) -> list[str]:
    """The fields after the name, which may contain anything; none if the process has ended."""
    try:
        return (folder / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def is_below(pid: int, root: int, parents: dict[int, int]) -> bool:
    while pid > 1 and pid != root:
        pid = parents.get(pid, 0)
    return pid == root


def by_role(root: int, before: dict[int, float], after: dict[int, float]) -> dict[str, float]:
    """Seconds between two calls of `cpu_s`, by role; the front ends together.

    A server with one front end has it in its first process. Otherwise that process is the
    supervisor.
    """
    taken = {pid: after[pid] - before.get(pid, 0.0) for pid in after}
    core = sum(spent for pid, spent in taken.items() if is_core(pid))
    others = {pid: spent for pid, spent in taken.items() if not is_core(pid)}
    if len(others) == 1:
        return {"core": core, "frontend": sum(others.values())}
    supervisor = others.pop(root, 0.0)
    return {"core": core, "frontend": sum(others.values()), "supervisor": supervisor}


def is_core(pid: int) -> bool:
    try:
        return CORE in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return False
