import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.core.errors import ConfigError
from paceline.core.system import files as folders
from paceline.runner.native import build
from paceline.runner.native import library as module
from paceline.runner.native.library import is_available, library


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """An empty cache, no kernels of a wheel, and nothing loaded."""
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr(build, "PREBUILT", str(tmp_path / "prebuilt"))
    monkeypatch.setattr(build, "FLAGS", ["-O0", "-pthread"])  # compiles in a fraction of the time
    for cached in (library, module._warn, folders.temporary_folder, folders._warn_once):
        cached.cache_clear()
    yield tmp_path / "cache" / "native"
    for cached in (library, folders.temporary_folder):
        cached.cache_clear()


def test_without_a_compiler(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    assert not is_available()
    assert not is_available()
    assert caplog.text.count("slower kernels are used: the native kernels need a C compiler") == 1
    with pytest.raises(ConfigError, match="'no-such-compiler' was not found"):
        library()


@pytest.mark.skipif(not is_available(), reason="needs a C compiler")
class TestCompiled:
    def test_in_a_temporary_folder_if_the_cache_cannot_be_written(
        self, fresh: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        fresh.parent.write_text("a file, and no folder")
        library()
        (built,) = (tmp_path / f"paceline-{os.getuid()}" / "native").iterdir()
        assert caplog.text.count("cannot be written") == 1
        assert f"{built.parents[1]} is used" in caplog.text

    def test_a_damaged_one_is_compiled_again(
        self, fresh: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        library()
        (built,) = fresh.iterdir()
        (tmp_path / "other" / "native").mkdir(parents=True)
        again = tmp_path / "other" / "native" / built.name
        again.write_bytes(b"torn")
        monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "other"))
        library.cache_clear()
        library()
        assert len(again.read_bytes()) == len(built.read_bytes())

    def test_once(self, fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert library().bytes_panel() > 0
        (built,) = fresh.iterdir()
        library.cache_clear()
        monkeypatch.setattr(module, "stored", None)  # would fail if it were called
        library()
        assert list(fresh.iterdir()) == [built]

    def test_those_of_a_wheel_need_no_compiler(
        self, fresh: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        if build.best_level() is None:
            pytest.skip("no level is known for this processor")
        (tmp_path / "prebuilt").mkdir()
        names = [file.name for file in build.compile_all(tmp_path / "prebuilt")]
        assert len(names) == len(build.levels_here())
        monkeypatch.setenv("CC", "no-such-compiler")
        assert library().bytes_panel() > 0
        assert not fresh.exists()

    def test_those_of_another_system_are_passed_over(self, fresh: Path, tmp_path: Path) -> None:
        if (level := build.best_level()) is None:
            pytest.skip("no level is known for this processor")
        (tmp_path / "prebuilt").mkdir()
        (tmp_path / "prebuilt" / build.prebuilt_name(level)).write_bytes(b"not for this system")
        library()
        assert len(list(fresh.iterdir())) == 1

    def test_what_does_not_compile_is_told(
        self, fresh: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        wrong = tmp_path / "wrong.c"
        wrong.write_text("int nonsense(")
        monkeypatch.setattr(build, "SOURCES", [wrong])
        assert not is_available()
        with pytest.raises(ConfigError, match=r"do not compile: .*wrong\.c"):
            library()
        assert list(fresh.iterdir()) == []
