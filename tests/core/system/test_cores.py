"""The cores that a process may use."""

import os
import subprocess
import sys
from pathlib import Path
from time import monotonic

import pytest

from paceline.core.system import host as cores
from paceline.core.system.host import in_cpuinfo, processor_name, usable_cores, waited_s


def test_cores_are_counted_with_and_without_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 5, 7}, raising=False)
    assert usable_cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 12)
    assert usable_cores() == 12


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="Linux counts it")
def test_waiting_for_a_core_is_counted() -> None:
    """More threads than one core can run at a time, of other programs."""
    core = {min(os.sched_getaffinity(0))}
    before, usual = waited_s(), os.sched_getaffinity(0)
    spin = f"import os\nos.sched_setaffinity(0, {core})\nwhile True: pass"
    others = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(2)]
    try:
        os.sched_setaffinity(0, core)
        end = monotonic() + 10.0
        while waited_s() - before < 0.02 and monotonic() < end:
            pass
    finally:
        os.sched_setaffinity(0, usual)
        for one in others:
            one.kill()
            one.wait()
    assert waited_s() - before >= 0.02


def test_the_processor_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert processor_name()
    monkeypatch.setattr(cores, "in_cpuinfo", lambda wanted: "Some CPU @ 2 GHz")
    assert processor_name() == "Some CPU @ 2 GHz"
    monkeypatch.undo()
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "flags\t: a\nmodel name\t: X: y\n")
    assert in_cpuinfo("model name") == "X: y"
    assert in_cpuinfo("nothing") is None
