"""CPU time of a server by process: the core, the front ends, and what started them."""

import os
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
CORES = (b"paceline.engine.transport.process_main", b"VLLM::EngineCore")  # on their command lines
TRACKER = b"multiprocessing.resource_tracker"  # of Python's shared memory; it does next to nothing


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
    lines = {pid: command_line(pid) for pid in after}
    taken = {pid: after[pid] - before.get(pid, 0.0) for pid in after if TRACKER not in lines[pid]}
    cores = [pid for pid in taken if any(name in lines[pid] for name in CORES)]
    core = sum(taken.pop(pid) for pid in cores)
    if len(taken) == 1:
        return {"core": core, "frontend": sum(taken.values())}
    supervisor = taken.pop(root, 0.0)
    return {"core": core, "frontend": sum(taken.values()), "supervisor": supervisor}


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
