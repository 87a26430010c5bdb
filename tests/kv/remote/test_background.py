"""Work on threads that fails costs what it had in hand, and nothing else."""

from pathlib import Path
from queue import SimpleQueue

import pytest

from paceline.kv.remote.background import BackgroundConnector, Worker
from tests.conformance.test_connectors import Engine
from tests.kv.block_array import BlockArray, keys_of, stopped, transfer

KEYS = keys_of(1, 2)


def test_a_load_or_a_copy_that_raises_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("no such block")

    engine = Engine("disk", {"path": str(tmp_path), "pending_mib": 1})
    engine.store_blocks(KEYS, (1, 2))
    with monkeypatch.context() as patched:
        patched.setattr(BlockArray, "write", fails)
        assert engine.load(KEYS, (5, 6)).bad == 0
        patched.setattr(BlockArray, "read", fails)
        for ticket in range(3):
            one = transfer(ticket, keys_of(9), (1,))
            assert engine.end(engine.connector.store, one).bad is None
    assert engine.load(KEYS, (5, 6)).bad is None
    engine.connector.close()
    assert len(caplog.records) == 4


def test_content_that_is_wrong_is_not_saved_later(tmp_path: Path) -> None:
    """It was stored, and not copied yet when it was found to be wrong."""
    engine = Engine("disk", {"path": str(tmp_path)})
    assert isinstance(engine.connector, BackgroundConnector)
    with stopped(engine.connector._loader):
        engine.connector.store(transfer(1, KEYS, (1, 2)))
        engine.connector.forget(KEYS)
    engine.wait(lambda: engine.connector.poll() or None)
    engine.store_blocks(keys_of(3), (3,), ticket=2)  # behind the others
    assert engine.offered(KEYS) == 0
    engine.connector.close()


def test_the_first_blocks_of_a_store_that_is_too_large_are_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine("disk", {"path": str(tmp_path), "pending_mib": 1})
    monkeypatch.setattr(engine.connector, "_most_pending", engine.store.block_bytes * 3 // 2)
    assert engine.end(engine.connector.store, transfer(1, KEYS, (1, 2))).bad is None
    engine.wait(lambda: engine.connector.keep(KEYS) or None)
    assert engine.offered(KEYS) == 1
    engine.store_blocks(KEYS[1:], (2,))  # the room is there again
    assert engine.offered(KEYS) == 2
    engine.connector.close()


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
