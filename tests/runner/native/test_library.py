from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.core.errors import ConfigError
from paceline.runner.native import library as module
from paceline.runner.native.library import is_available, library


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """An empty cache, and nothing loaded."""
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    library.cache_clear()
    module._warn.cache_clear()
    yield tmp_path / "native"
    library.cache_clear()


def test_without_a_compiler(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    assert not is_available()
    assert not is_available()
    assert caplog.text.count("slower kernels are used: the native kernels need a C compiler") == 1
    with pytest.raises(ConfigError, match="'no-such-compiler' was not found"):
        library()


def test_without_a_cache_that_can_be_written(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "file"))
    assert not is_available()
    with pytest.raises(ConfigError):
        library()


@pytest.mark.skipif(not is_available(), reason="needs a C compiler")
class TestCompiled:
    def test_a_damaged_one_is_told(
        self, fresh: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        library()
        (built,) = fresh.iterdir()
        (tmp_path / "other" / "native").mkdir(parents=True)
        (tmp_path / "other" / "native" / built.name).write_bytes(b"torn")
        monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "other"))
        library.cache_clear()
        with pytest.raises(ConfigError, match="cannot be loaded"):
            library()

    def test_once(self, fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert library().bytes_panel() > 0
        (built,) = fresh.iterdir()
        library.cache_clear()
        monkeypatch.setattr(module, "_compile", None)  # would fail if it were called
        library()
        assert list(fresh.iterdir()) == [built]

    def test_again_for_other_sources(
        self, fresh: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        before = module._digest(module.FLAGS, "")
        changed = tmp_path / "linear.c"
        changed.write_text(module.SOURCES[0].read_text(encoding="utf-8") + "\n")
        monkeypatch.setattr(module, "SOURCES", [changed, *module.SOURCES[1:]])
        assert module._digest(module.FLAGS, "") != before
        assert module._digest(module.FLAGS, "#define __clang__ 1") != module._digest([], "")

    def test_what_does_not_compile_is_told(
        self, fresh: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        wrong = tmp_path / "wrong.c"
        wrong.write_text("int nonsense(")
        monkeypatch.setattr(module, "SOURCES", [wrong])
        assert not is_available()
        with pytest.raises(ConfigError, match=r"do not compile: .*wrong\.c"):
            library()
        assert list(fresh.iterdir()) == []
