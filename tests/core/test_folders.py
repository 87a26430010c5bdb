from pathlib import Path

import pytest

from paceline.core.folders import cache_folder


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
