"""Files of blocks: whole or not there, and no more than there is room for."""

import os
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.kv.connector import Bytes
from paceline.kv.keys import HEAD
from paceline.kv.remote.block_files import FRESH_S, USED_S, BlockFiles, KnownContent
from tests.kv.block_array import keys_of

(KEY,) = keys_of(7)
ROW: Bytes = np.arange(64, dtype=np.uint8)


def read(files: BlockFiles, key: bytes = KEY) -> Bytes | None:
    row = np.zeros(64, np.uint8)
    return row if files.read(key, row) == "whole" else None


def file_of(folder: Path) -> Path:
    (found,) = folder.glob("a/*/*.kv")
    return found


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    files = BlockFiles(tmp_path, "a", 1 << 20)
    assert not files.has(KEY)
    files.write(KEY, ROW)
    again = BlockFiles(tmp_path, "a", 1 << 20)
    assert again.has(KEY)
    assert (read(again) == ROW).all()
    assert not BlockFiles(tmp_path, "b", 1 << 20).has(KEY)
    assert not [*tmp_path.glob("*/*/*.part")]


@pytest.mark.parametrize("damage", ["cut", "changed", "other size"])
def test_a_torn_file_is_removed(tmp_path: Path, damage: str) -> None:
    files = BlockFiles(tmp_path, "a", 1 << 20)
    files.write(KEY, ROW)
    file = file_of(tmp_path)
    content = bytearray(file.read_bytes())
    if damage == "changed":
        content[HEAD.size + 5] ^= 1
    file.write_bytes(content[:-1] if damage == "cut" else content)
    if damage == "other size":
        assert files.read(KEY, np.zeros(32, np.uint8)) == "damaged"
    else:
        assert read(files) is None
    assert not file.exists()


def test_what_was_used_least_recently_is_removed(tmp_path: Path) -> None:
    size = HEAD.size + len(ROW)
    files = BlockFiles(tmp_path, "a", 4 * size)
    keys = keys_of(*range(6))
    for age, key in enumerate(keys[:4]):
        files.write(key, ROW)
        name = key.hex()
        os.utime(tmp_path / "a" / name[:2] / f"{name}.kv", (age, age))
    assert read(files, keys[0]) is not None  # it is the newest now
    files.write(keys[4], ROW)
    left = [files.has(key) for key in keys[:5]]
    assert left == [True, False, False, True, True]  # down to nine tenths of the limit
    files.clear()
    assert not [*tmp_path.glob("*/*/*.kv")]


def test_files_that_cannot_be_looked_at_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other processes remove files while a folder is listed, and folders become unreadable."""
    files, stat = BlockFiles(tmp_path, "a", 1 << 20), os.stat
    files.write(KEY, ROW)

    def fails(path: Any, **options: Any) -> Any:
        if str(path).endswith(".kv"):
            raise OSError(5, "Input/output error")
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", fails)
    assert not files.has(KEY)
    assert not BlockFiles(tmp_path, "a", 1 << 20).has(KEY)


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = BlockFiles(tmp_path, "a", 1 << 20)

    def fails(source: str, target: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(OSError, match="No space"):
        files.write(KEY, ROW)
    assert not [one for one in tmp_path.rglob("*") if one.is_file()]


def test_content_that_is_there_is_not_written_again(tmp_path: Path) -> None:
    files = BlockFiles(tmp_path, "a", 1 << 20)
    files.write(KEY, ROW)
    os.utime(file_of(tmp_path), (1.0, 1.0))
    files.write(KEY, ROW)
    assert file_of(tmp_path).stat().st_mtime > 1.0
    assert (read(files) == ROW).all()


def test_what_a_writer_left_behind_is_removed(tmp_path: Path) -> None:
    files = BlockFiles(tmp_path, "a", 1)  # no content fits
    folder = tmp_path / "a" / "00"
    folder.mkdir()
    old, new = folder / "tmpold.part", folder / "tmpnew.part"
    for part in (old, new):
        part.write_bytes(b"")
    os.utime(old, (1.0, 1.0))
    files.write(KEY, ROW)
    assert not files.has(KEY)
    assert (old.exists(), new.exists()) == (False, True)


@pytest.mark.parametrize("umask", [0o022, 0o002])
def test_others_may_read_files_if_the_umask_says_so(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        BlockFiles(tmp_path, "a", 1 << 20).write(KEY, ROW)
    finally:
        os.umask(before)
    assert file_of(tmp_path).stat().st_mode & 0o777 == 0o666 & ~umask


def test_files_that_cannot_be_removed_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    files = BlockFiles(tmp_path, "a", 1 << 20)
    files.write(KEY, ROW)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", fails)
        with pytest.raises(PermissionError):
            files.clear()
    files.clear()
    assert not files.has(KEY)


def test_files_of_other_layouts_make_room_too(tmp_path: Path) -> None:
    size, (first, second) = HEAD.size + len(ROW), keys_of(1, 2)
    BlockFiles(tmp_path, "b", 1 << 20).write(first, ROW)
    os.utime(next(tmp_path.glob("b/*/*.kv")), (1, 1))
    files = BlockFiles(tmp_path, "a", 5 * size // 2)
    files.write(KEY, ROW)
    files.write(second, ROW)
    assert not [*tmp_path.glob("b/*/*.kv")]
    assert not files.removed  # none of its own
    assert files.has(KEY)
    assert files.has(second)


def test_a_disk_that_takes_a_part_of_a_file_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Partial(FileIO):
        def write(self, content: Any) -> int:
            return super().write(bytes(content)[:40])

    def opened(path: Path, mode: str, **_: Any) -> Partial:
        return Partial(path, mode)

    monkeypatch.setattr(Path, "open", opened)
    with pytest.raises(OSError, match="the disk is full"):
        BlockFiles(tmp_path, "a", 1 << 20).write(KEY, ROW)
    assert not [one for one in tmp_path.rglob("*") if one.is_file()]


KEYS = keys_of(1, 2, 3)


def test_content_is_known_up_to_the_first_that_is_missing() -> None:
    known = KnownContent()
    assert known.seek(KEYS[0])
    assert not known.seek(KEYS[0])  # it is being looked for
    known.found(KEYS, 2, now=10.0)
    assert known.leading(KEYS) == 2
    assert known.is_missing(KEYS[2], 10.0)
    assert not known.is_missing(KEYS[2], 10.0 + FRESH_S)
    assert known.seek(KEYS[0])
    known.add(KEYS[2:], 11.0)
    assert not known.is_missing(KEYS[2], 10.0)
    known.drop(KEYS[1:2])
    assert known.leading(KEYS) == 1
    known.clear()
    assert known.leading(KEYS) == 0


def test_the_use_of_content_is_noted_now_and_then() -> None:
    known = KnownContent()
    known.add(KEYS, 0.0)
    assert known.use(KEYS, 1.0) == ()
    assert known.use(KEYS[:1], USED_S) == KEYS[:1]
    assert known.use(KEYS, USED_S + 1.0) == KEYS[1:]


def test_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.kv.remote.block_files.KNOWN", 2)
    known = KnownContent()
    known.add(KEYS, 0.0)
    assert known.leading(KEYS[:1]) == 0
    assert known.leading(KEYS[1:]) == 2
