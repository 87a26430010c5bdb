"""The threads of the kernels: every item once, and no core held without work."""

import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from ctypes import CFUNCTYPE, c_int64, c_void_p
from pathlib import Path
from time import sleep

import pytest

from paceline.runner.native.library import is_available, library

if not is_available():
    pytest.skip("needs a C compiler", allow_module_level=True)

FORKED = """
import os
from tests.runner.native.test_threads import shared
assert shared(100, 3) == shared(100, 3)
child = os.fork()
if not child:
    os._exit(0 if set(shared(100, 3).values()) == {1} else 1)
print(os.waitpid(child, 0)[1])
"""


def shared(count: int, threads: int) -> Counter[int]:
    """How often each item was computed."""
    seen: list[int] = []

    def run(_task: int, begin: int, end: int) -> None:
        seen.extend(range(begin, end))

    library().share(CFUNCTYPE(None, c_void_p, c_int64, c_int64)(run), None, c_int64(count), threads)
    return Counter(seen)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_every_item_once(threads: int) -> None:
    for count in (0, 1, 2, 3, 7, 64, 300):
        assert shared(count, threads) == Counter(range(count))


def test_more_items_than_fit_a_post() -> None:
    assert shared(1 << 18, 2).total() == 1 << 18


def test_several_callers_at_once() -> None:
    with ThreadPoolExecutor(4) as callers:
        found = list(callers.map(lambda _: shared(50, 3), range(200)))
    assert all(one == Counter(range(50)) for one in found)


def test_a_child_process_starts_threads_of_its_own() -> None:
    root = Path(__file__).parents[3]
    path = os.pathsep.join((str(root), str(root / "src")))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "0\n"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_threads_without_work_sleep() -> None:
    before = tasks()
    shared(64, 20)  # more than any other test has
    ours = tasks() - before
    assert ours
    for _ in range(200):
        states = {stat.rpartition(") ")[2][0] for stat in map(stat_of, ours)}
        if states == {"S"}:
            return
        sleep(0.01)
    pytest.fail(f"threads are in the states {states}")


def tasks() -> set[str]:
    return set(os.listdir("/proc/self/task"))


def stat_of(task: str) -> str:
    return Path(f"/proc/self/task/{task}/stat").read_text()
