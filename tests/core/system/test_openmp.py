"""Idle threads sleep soon, however a program comes to torch and to paceline."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.core.system.host import CHOSEN, LIMITS, limit_spinning, loaded_libraries

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
    for script in ("import paceline, torch", "import paceline.cli.main, torch"):
        assert SHOWN in ran(script).stderr


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other OpenMP libraries")
def test_torch_that_was_imported_before_gets_more_threads_than_cores() -> None:
    done = ran(TORCH_FIRST)
    assert SHOWN not in done.stderr
    libraries, teams, left = done.stdout.split()
    assert int(libraries) == int(teams) > 0
    assert left == "[]"
