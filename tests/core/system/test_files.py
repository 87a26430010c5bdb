import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from paceline.core.system import files
from paceline.core.system.files import cache_folder, found, packed_folder, placed, stored


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"PACELINE_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, Path("/a")),
        ({"PACELINE_CACHE": "", "XDG_CACHE_HOME": "/b"}, Path("/b/paceline")),
        ({"XDG_CACHE_HOME": ""}, Path.home() / ".cache" / "paceline"),
        ({"PACELINE_CACHE": "~/models"}, Path.home() / "models"),
    ],
)
def test_where_the_cache_is(environ: dict[str, str], folder: Path) -> None:
    assert cache_folder(environ) == folder


def test_the_environment_counts_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_CACHE", "/elsewhere")
    assert cache_folder() == Path("/elsewhere")


def test_a_file_appears_when_it_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "new" / "file"
    with placed(target) as built:
        built.write_text("all of it")
        assert not target.exists()
    assert target.read_text() == "all of it"
    assert list(target.parent.iterdir()) == [target]


def test_what_failed_leaves_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("before")
    with suppress(OSError), placed(target) as built:
        built.write_text("a part")
        raise OSError("the disk is full")
    assert target.read_text() == "before"
    assert list(tmp_path.iterdir()) == [target]


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The temporary folder in place of the cache, which does not exist yet."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    for cached in (files.temporary_folder, files._warn_once):
        cached.cache_clear()
    return tmp_path / f"paceline-{os.getuid()}"


def write(text: str) -> Callable[[Path], None]:
    def to(place: Path) -> None:
        place.write_text(text)

    return to


def test_files_are_stored_in_the_cache(temporary: Path) -> None:
    assert found(Path("a/b")) is None
    target = stored(Path("a/b"), write("one"))
    assert target == cache_folder() / "a" / "b"
    assert found(Path("a/b")) == target
    assert not temporary.exists()


def test_a_temporary_folder_stands_in_for_a_cache_that_cannot_be_written(
    temporary: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache_folder().write_text("a file")
    for name in ("b", "c"):
        assert stored(Path("a") / name, write(name)) == temporary / "a" / name
    assert found(Path("a/b")) == temporary / "a" / "b"
    assert len(caplog.records) == 1
    assert temporary.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_others_can_write_to_is_not_used(temporary: Path) -> None:
    temporary.mkdir(mode=0o777)
    temporary.chmod(0o777)
    (temporary / "b").write_text("theirs")
    cache_folder().write_text("a file")
    assert found(Path("b")) is None
    target = stored(Path("b"), write("ours"))
    assert target.parent != temporary
    assert target.parent.stat().st_mode & 0o777 == 0o700


def test_an_error_while_writing_is_raised(temporary: Path) -> None:
    def fail(_place: Path) -> None:
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        stored(Path("b"), fail)
    assert not temporary.exists()


def test_packed_weights_have_a_folder_for_each_source() -> None:
    assert packed_folder(Path("/a")) == packed_folder(Path("/b/../a").resolve())
    assert packed_folder(Path("/a")) != packed_folder(Path("/b"))
