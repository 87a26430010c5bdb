from contextlib import suppress
from pathlib import Path

import pytest

from paceline.core.folders import cache_folder, placed


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
