"""A process that can be killed tries grammars out."""

import subprocess
import sys
from threading import Timer

import pytest

from paceline.core.constraint import Constraint
from paceline.core.errors import ConfigError, GrammarTooCostly, RequestError
from paceline.structured.worker_process import WorkerProcess
from tests.structured.support import table

WORD = Constraint.regex("[a-z]+")

# Starts a worker and dies without closing it.
ORPHAN = """
import os
from paceline.structured.token_table import TokenTable
from paceline.structured.worker_process import WorkerProcess

worker = WorkerProcess(TokenTable((b"a", b""), (1,)), 1 << 30, 1.0)
os._exit(0)
"""


def test_it_answers_until_it_is_killed() -> None:
    worker = WorkerProcess(table(), 1 << 30, 1.0)
    worker.check("xgrammar", WORD, 60.0)
    with pytest.raises(RequestError, match=r"does not compile: .* position 4"):
        worker.check("xgrammar", Constraint.regex("a(b"), 60.0)
    worker.check("llguidance", WORD, 60.0)
    assert worker.alive
    worker.kill()
    assert not worker.alive
    with pytest.raises(ConfigError, match="xgrammar cannot be loaded in another process"):
        worker.check("xgrammar", WORD, 60.0)
    worker.close()


def test_a_crash_is_the_end_of_that_process_alone() -> None:
    worker = WorkerProcess(table(), 1 << 30, 1.0)
    worker.check("xgrammar", WORD, 60.0)
    endless = Constraint.regex("((((a{0,99}){0,99}){0,99}){0,99}){0,99}")
    Timer(0.2, worker.kill).start()
    with pytest.raises(GrammarTooCostly, match=r"more than 1024 MiB .* or xgrammar has crashed"):
        worker.check("xgrammar", endless, 60.0)
    worker.close()


def test_it_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    worker = WorkerProcess(table(), 1 << 30, 1.0)
    with pytest.raises(ConfigError, match="llguidance cannot be loaded in another process"):
        worker.check("llguidance", WORD, 60.0)
    worker.close()


def test_it_ends_with_its_parent() -> None:
    """The worker has the parent's stdout, so that `run` returns when both have ended."""
    subprocess.run([sys.executable, "-c", ORPHAN], capture_output=True, check=True, timeout=60)
