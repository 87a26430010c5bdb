"""Processes that can be killed try grammars out."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from threading import Timer

import pytest

from paceline.core.constraint import Constraint
from paceline.core.errors import ConfigError, GrammarTooCostly, RequestError
from paceline.structured import worker_process
from paceline.structured.worker_process import OutOfTime, WorkerNursery, mean_fill_s, try_out
from tests.structured.support import backend, every_backend, table

BOTH = ("xgrammar", "llguidance")
WORD = Constraint.regex("[a-z]+")
ENDLESS = Constraint.regex("((((a{0,99}){0,99}){0,99}){0,99}){0,99}")  # minutes in xgrammar

# Starts a worker and dies without closing it.
ORPHAN = """
import os
from paceline.structured.token_table import TokenTable
from paceline.structured.worker_process import WorkerNursery

WorkerNursery(TokenTable((b"a", b""), (1,)), (), 1 << 30, 1.0).start("llguidance")
os._exit(0)
"""


@pytest.fixture(scope="module")
def nursery() -> Iterator[WorkerNursery]:
    nursery = WorkerNursery(table(), BOTH, 1 << 30, 1.0)
    yield nursery
    nursery.close()


def test_it_answers_until_it_is_killed(nursery: WorkerNursery) -> None:
    worker = nursery.start("xgrammar")
    worker.check("xgrammar", WORD, 60.0)
    with pytest.raises(RequestError, match=r"does not compile: .* position 4"):
        worker.check("xgrammar", Constraint.regex("a(b"), 60.0)
    assert worker.alive
    worker.kill()
    assert not worker.alive
    with pytest.raises(GrammarTooCostly, match="has crashed"):
        worker.check("xgrammar", WORD, 60.0)


def test_a_worker_has_the_backends_that_were_loaded_before(nursery: WorkerNursery) -> None:
    nursery.start("xgrammar").close()
    worker = nursery.start("llguidance")
    assert worker.backends == set(BOTH)
    for name in worker.backends:
        worker.check(name, WORD, 60.0)
    worker.close()


def test_the_system_ends_one_that_takes_too_much_processor_time(nursery: WorkerNursery) -> None:
    slow, other = nursery.start("xgrammar"), nursery.start("xgrammar")
    with pytest.raises(OutOfTime, match=r"takes more than 0\.2 s to compile with xgrammar"):
        slow.check("xgrammar", ENDLESS, 0.2)
    assert not slow.alive
    with pytest.raises(ProcessLookupError):
        os.kill(slow._pid, 0)
    other.check("xgrammar", WORD, 60.0)
    other.close()


def test_one_that_gets_no_processor_time_is_killed_as_well(
    nursery: WorkerNursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_process, "GRACE_S", 0.05)
    worker = nursery.start("xgrammar")
    os.kill(worker._pid, signal.SIGSTOP)
    with pytest.raises(OutOfTime, match=r"takes more than 0\.05 s"):
        worker.check("xgrammar", WORD, 0.05)
    assert not worker.alive


def test_a_crash_is_the_end_of_that_worker_alone(nursery: WorkerNursery) -> None:
    worker = nursery.start("xgrammar")
    Timer(0.2, worker.kill).start()
    with pytest.raises(GrammarTooCostly, match=r"more than 1024 MiB .* or xgrammar has crashed"):
        worker.check("xgrammar", ENDLESS, 60.0)
    again = nursery.start("xgrammar")
    again.check("xgrammar", WORD, 60.0)
    again.close()


def test_a_nursery_that_died_is_replaced() -> None:
    nursery = WorkerNursery(table(), BOTH, 1 << 30, 1.0)
    nursery.start("llguidance").close()
    assert nursery._process is not None
    nursery._process.kill()
    nursery._process.wait()
    worker = nursery.start("llguidance")
    worker.check("llguidance", WORD, 60.0)
    nursery.close()
    assert not worker.alive


def test_it_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    nursery = WorkerNursery(table(), BOTH, 1 << 30, 1.0)
    with pytest.raises(ConfigError, match="llguidance cannot be loaded in another process"):
        nursery.start("llguidance")


def test_it_ends_with_its_parent() -> None:
    """The worker has the parent's stdout, so that `run` returns when both have ended."""
    subprocess.run([sys.executable, "-c", ORPHAN], capture_output=True, check=True, timeout=60)


@every_backend
def test_the_time_of_masks_is_measured(name: str) -> None:
    for constraint in (Constraint.json_object(), Constraint.choice(["the", "one"])):
        matcher = backend(name).compile(constraint).matcher()
        assert 0 < mean_fill_s(matcher, table()) < 1


@every_backend
def test_a_limit_on_masks(name: str) -> None:
    try_out(backend(name), table(), Constraint.json_object(), fill_s=1.0)
    with pytest.raises(GrammarTooCostly, match=r"json takes .* ms for each token, more than 0 ms"):
        try_out(backend(name), table(), Constraint.json_object(), fill_s=0.0)
    with pytest.raises(RequestError, match="does not compile"):
        try_out(backend(name), table(), Constraint.regex("a(b"), fill_s=1.0)


def test_work_per_token_is_limited_by_llguidance_itself() -> None:
    endless = Constraint.regex("((a{0,99}){0,99}){0,99}")
    with pytest.raises(GrammarTooCostly, match="the grammar failed: lexer error"):
        try_out(backend("llguidance"), table(), endless, fill_s=60.0)
