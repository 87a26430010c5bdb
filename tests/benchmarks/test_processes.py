"""CPU time of a process and of those below it."""

import os
import subprocess
import sys

from benchmarks.processes import by_role, cpu_s

WORK = "sum(range(3_000_000)); print(flush=True); input()"


def test_children_are_counted_and_the_first_process_supervises_several() -> None:
    before = cpu_s(os.getpid())
    command = [sys.executable, "-c", WORK]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    after = cpu_s(os.getpid())
    child.communicate(b"\n")
    assert child.pid in after
    roles = by_role(os.getpid(), before, after)
    assert roles["frontend"] >= after[child.pid] > 0
    assert roles.keys() == {"core", "frontend", "supervisor"}
    assert by_role(child.pid, {}, {child.pid: 2.0}) == {"core": 0, "frontend": 2.0}
