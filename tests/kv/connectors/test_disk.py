"""KV in files: it outlives the engine, and a disk that fails costs a warning."""

import logging
from pathlib import Path

import pytest

from paceline.core.errors import ConfigError
from paceline.kv.block_files import BlockFiles
from tests.conformance.test_connectors import Engine
from tests.kv.block_array import keys_of, transfer

KEYS = keys_of(1, 2)


def test_a_restarted_engine_finds_what_was_stored(tmp_path: Path) -> None:
    for expected in (0, 2):
        engine = Engine("disk", {"path": str(tmp_path)})
        assert engine.offered(KEYS) == expected
        engine.store_blocks(KEYS, (1, 2))
        engine.connector.close()


def test_a_file_that_is_gone_fails_the_load_and_is_not_offered_again(tmp_path: Path) -> None:
    engine = Engine("disk", {"path": str(tmp_path)})
    engine.store_blocks(KEYS, (1, 2))
    for file in tmp_path.glob(f"*/*/{KEYS[1].hex()}.kv"):
        file.unlink()
    assert engine.load(KEYS, (5, 6)).bad == 1
    assert engine.offered(KEYS) == 1
    engine.connector.close()


def test_a_disk_that_fails_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    engine = Engine("disk", {"path": str(tmp_path)})
    monkeypatch.setattr(BlockFiles, "write", fails)
    with caplog.at_level(logging.WARNING):
        for ticket in range(3):
            one = transfer(ticket, keys_of(ticket), (1,))
            assert engine.end(engine.connector.store, one).bad is None
        engine.connector.close()
    assert len(caplog.records) == 1
    assert "No space left" in caplog.text


def test_stores_that_the_disk_cannot_follow_are_dropped(tmp_path: Path) -> None:
    engine = Engine("disk", {"path": str(tmp_path), "pending_mib": 0})
    assert engine.end(engine.connector.store, transfer(1, KEYS, (1, 2))).bad is None
    assert engine.offered(KEYS) == 0
    engine.connector.close()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"path is .*file"):
        Engine("disk", {"path": str(tmp_path / "file")})
