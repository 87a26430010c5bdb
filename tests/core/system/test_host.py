"""What the host gives a process: cores, threads of libraries, and garbage collection."""

import gc
import os
import subprocess
import sys
from pathlib import Path
from time import monotonic

import pytest

from paceline.core.system import host
from paceline.core.system.host import (
    CHOSEN,
    LIMITS,
    THRESHOLDS,
    collection_paused,
    in_cpuinfo,
    keep_heap,
    limit_spinning,
    loaded_libraries,
    processor_name,
    usable_cores,
    waited_s,
)


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
    monkeypatch.setattr(host, "in_cpuinfo", lambda wanted: "Some CPU @ 2 GHz")
    assert processor_name() == "Some CPU @ 2 GHz"
    monkeypatch.undo()
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "flags\t: a\nmodel name\t: X: y\n")
    assert in_cpuinfo("model name") == "X: y"
    assert in_cpuinfo("nothing") is None


def test_collection_goes_on_afterwards() -> None:
    def fail() -> None:
        assert not gc.isenabled()
        raise ValueError("failed")

    with pytest.raises(ValueError, match="failed"), collection_paused():
        fail()
    assert gc.isenabled()


def test_a_program_that_has_paused_it_keeps_it_paused() -> None:
    gc.disable()
    try:
        with collection_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_what_is_loaded_is_never_searched_again() -> None:
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    held = [[one] for one in range(100)]
    try:
        keep_heap()
        assert gc.get_freeze_count() > frozen + len(held)
        assert gc.get_threshold() == THRESHOLDS
        assert not any(one is held for one in gc.get_objects())
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)


SHOWN = f"GOMP_SPINCOUNT = '{LIMITS['GOMP_SPINCOUNT']}'"
TORCH_FIRST = """
import os, torch
torch.ones(9).sum()
from paceline.core.system.host import EARLY, limit_early
threads, libraries = len(os.listdir("/proc/self/task")), len(EARLY)
limit_early()
torch.ones(9).sum()
print(libraries, (len(os.listdir("/proc/self/task")) - threads) // (os.cpu_count() + 1), EARLY)
"""


def ran(script: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name not in CHOSEN}
    return subprocess.run(
        [sys.executable, "-c", script],
        env=clean | {"OMP_DISPLAY_ENV": "verbose"},
        capture_output=True,
        text=True,
        check=True,
    )


@pytest.mark.parametrize("name", CHOSEN)
def test_a_user_who_sets_one_decides(name: str) -> None:
    environ = {name: "7"}
    limit_spinning(environ)
    assert environ == {name: "7"}


def test_limits_are_for_libraries_that_come_later() -> None:
    environ: dict[str, str] = {}
    limit_spinning(environ)
    assert environ == LIMITS


def test_libraries_are_found_by_their_files(tmp_path: Path) -> None:
    there = tmp_path / "a b" / "libgomp-1.so"
    there.parent.mkdir()
    there.write_text("")
    maps = tmp_path / "maps"
    head = "ffff8000-ffff9000 r-xp 00000000 fe:00 123 "
    lines = [f"{head}{there}", f"{head}{there}", f"{head}/gone/libgomp.so.1", f"{head}/lib/libc.so"]
    maps.write_text("\n".join(lines))
    assert loaded_libraries(maps) == [str(there)]
    assert loaded_libraries(tmp_path / "none") == []


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other OpenMP libraries")
def test_torch_reads_the_limit_if_it_is_imported_later() -> None:
    assert SHOWN in ran("import paceline.cli.main, torch").stderr


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other OpenMP libraries")
def test_torch_that_was_imported_before_gets_more_threads_than_cores() -> None:
    done = ran(TORCH_FIRST)
    assert SHOWN not in done.stderr
    libraries, teams, left = done.stdout.split()
    assert int(libraries) == int(teams) > 0
    assert left == "[]"
