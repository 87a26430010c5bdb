"""A worker outlives work that fails."""

from queue import SimpleQueue

import pytest

from paceline.kv.remote.background import Worker


def test_work_goes_on_after_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    done: SimpleQueue[int] = SimpleQueue()

    def fail() -> None:
        raise RuntimeError("no such block")

    worker = Worker("test")
    worker.do(fail)
    worker.do(lambda: done.put(1))
    assert done.get(timeout=30) == 1
    worker.close()
    assert "no such block" in caplog.text
