"""KV in files: it outlives the engine, and a disk that fails costs a warning."""

import logging
import os
from pathlib import Path
from time import monotonic, sleep

import numpy as np
import pytest

from paceline.core.errors import ConfigError
from paceline.kv.connectors import disk
from paceline.kv.connectors.disk import Disk
from paceline.kv.remote.block_files import USED_S, BlockFiles
from tests.conformance.test_connectors import Engine
from tests.kv.block_array import keys_of, stopped, transfer

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


@pytest.mark.parametrize("wrong", ["another key's", "another layout's", "without a head"])
def test_wrong_content_is_not_loaded_and_is_stored_again(tmp_path: Path, wrong: str) -> None:
    keys = keys_of(1, 2, 3)
    engine = Engine("disk", {"path": str(tmp_path)}, layout="one")
    engine.store_blocks(keys, (1, 2, 3))
    first, second, third = (file_of(tmp_path, "one", key) for key in keys)
    whole = second.read_bytes()
    if wrong == "another key's":
        second.write_bytes(third.read_bytes())
        third.write_bytes(whole)
    elif wrong == "another layout's":
        other = Engine("disk", {"path": str(tmp_path)}, seed=1, layout="other")
        other.store_blocks(keys, (1, 2, 3))
        file_of(tmp_path, "other", keys[1]).replace(second)
        other.connector.close()
    else:
        second.write_bytes(engine.store.content[2].tobytes())
    before = engine.store.content.copy()
    end = engine.load(keys, (5, 6, 7))
    assert (end.bad, end.reason) == (1, "a file is damaged")
    assert np.array_equal(engine.store.content[6:], before[6:])
    assert engine.connector.keep(keys) == 1
    engine.store_blocks(keys, (1, 2, 3))
    assert first.exists()
    assert second.read_bytes() == whole
    assert engine.load(keys, (5, 6, 7)).bad is None
    engine.connector.close()


def file_of(folder: Path, layout: str, key: bytes) -> Path:
    return folder / layout / key.hex()[:2] / f"{key.hex()}.kv"


def test_content_in_use_whose_files_are_gone_is_stored_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine("disk", {"path": str(tmp_path)})
    engine.store_blocks(KEYS, (1, 2))
    for file in tmp_path.glob("*/*/*.kv"):
        file.unlink()
    assert engine.connector.keep(KEYS) == 2  # not looked at yet
    monkeypatch.setattr(disk, "monotonic", lambda: monotonic() + USED_S)
    while engine.connector.keep(KEYS):
        assert engine.news.wait(30)
        engine.news.clear()
    engine.store_blocks(KEYS, (1, 2))
    assert len([*tmp_path.glob("*/*/*.kv")]) == 2
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


def test_a_store_that_would_wait_too_long_is_given_up(tmp_path: Path) -> None:
    engine = Engine("disk", {"path": str(tmp_path), "pending_mib": 0})
    assert engine.connector.poll() == []
    engine.connector.store(transfer(1, KEYS, (1, 2)))
    (end,) = engine.connector.poll()
    assert end.bad is None
    engine.connector.close()
    assert not [*tmp_path.glob("*/*/*.kv")]


def test_content_that_is_kept_is_the_latest_used(tmp_path: Path) -> None:
    first = Engine("disk", {"path": str(tmp_path)})
    first.store_blocks(KEYS, (1, 2))
    first.connector.close()
    files = [*tmp_path.glob("*/*/*.kv")]
    for file in files:
        os.utime(file, (1.0, 1.0))
    again = Engine("disk", {"path": str(tmp_path)})
    assert again.offered(KEYS) == 2
    assert again.connector.keep(KEYS) == 2
    give_up = monotonic() + 30
    while any(file.stat().st_mtime == 1.0 for file in files):
        assert monotonic() < give_up, "their use is not noted"
        sleep(0.01)
    again.connector.close()


def test_what_was_cleared_is_not_loaded_although_its_files_are_there(tmp_path: Path) -> None:
    engine = Engine("disk", {"path": str(tmp_path)})
    engine.store_blocks(KEYS, (1, 2))
    assert isinstance(engine.connector, Disk)
    with stopped(engine.connector._writer):
        engine.connector.clear()
        assert engine.offered(KEYS) == 0
        assert engine.load(KEYS, (5, 6)).bad == 0
    engine.store_blocks(KEYS[:1], (1,))
    assert engine.offered(KEYS) == 1
    engine.connector.close()


def test_content_that_cannot_be_removed_is_not_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    engine = Engine("disk", {"path": str(tmp_path)})
    engine.store_blocks(KEYS, (1, 2))
    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", fails)
        engine.connector.clear()
        assert isinstance(engine.connector, Disk)
        while not engine.connector._must_clear:
            assert engine.news.wait(30)
            assert engine.connector.poll() == []
        assert engine.offered(KEYS) == 0
    assert "cannot be removed" in caplog.text
    while engine.connector._must_clear or engine.connector._is_clearing:
        assert engine.offered(KEYS) == 0
    assert not [*tmp_path.glob("*/*/*.kv")]
    engine.connector.close()
