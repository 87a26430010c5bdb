"""Recordings are bounded, go on in new files, and never stop service."""

import logging
from pathlib import Path
from typing import Any

import pytest

from paceline.core.settings.features import RecordConfig
from paceline.sched.replay.recording import ENDED_BYTES, OUTCOME_BYTES, Recording
from paceline.sched.replay.records import MAGIC, RecordingError

BEGIN = MAGIC + b"settings"
LIMIT = len(BEGIN) + 4 * 100 + OUTCOME_BYTES + ENDED_BYTES
CALL = b"c" * 100


@pytest.fixture(autouse=True)
def tiny_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.core.settings.features.LEAST_RECORD_BYTES", 1)


def recording(path: Path, files: int = 3, begin: Any = lambda: BEGIN) -> Recording:
    return Recording(RecordConfig(str(path), LIMIT, files), begin)


def contents(path: Path) -> list[int]:
    """The calls in each file, newest first."""
    files = [path, *(path.with_name(f"{path.name}.{number}") for number in range(1, 9))]
    return [file.read_bytes().count(CALL) for file in files if file.exists()]


def logged(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno == level]


def test_calls_are_written_at_once_and_outcomes_with_the_next_call(tmp_path: Path) -> None:
    made = recording(tmp_path / "run")
    made.call(CALL)
    made.outcome(b"outcome")
    assert (tmp_path / "run").read_bytes() == BEGIN + CALL
    made.call(CALL)
    assert (tmp_path / "run").read_bytes() == BEGIN + CALL + b"outcome" + CALL
    assert made.size_bytes == (tmp_path / "run").stat().st_size
    made.close()


def test_a_full_file_is_kept_and_another_begun(tmp_path: Path) -> None:
    made = recording(tmp_path / "run")
    for _ in range(10):
        made.call(CALL)
    made.close()
    assert contents(tmp_path / "run") == [2, 4, 4]
    for file in tmp_path.iterdir():
        assert file.read_bytes().startswith(BEGIN)
        assert file.stat().st_size <= LIMIT


def test_an_outcome_stays_with_its_call(tmp_path: Path) -> None:
    made = recording(tmp_path / "run")
    for _ in range(4):
        made.call(CALL)
    made.outcome(b"o" * OUTCOME_BYTES)
    made.call(CALL)
    made.close()
    assert b"oo" in (tmp_path / "run.1").read_bytes()
    assert b"oo" not in (tmp_path / "run").read_bytes()
    assert (tmp_path / "run.1").stat().st_size == LIMIT


def test_only_the_newest_files_are_kept(tmp_path: Path) -> None:
    made = recording(tmp_path / "run", files=2)
    for _ in range(50):
        made.call(CALL)
    made.close()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["run", "run.1"]
    assert contents(tmp_path / "run") == [2, 4]


def test_a_single_file_keeps_the_beginning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = recording(tmp_path / "run", files=1)
    for _ in range(50):
        made.call(CALL)
    assert made.ended == "full"
    assert contents(tmp_path / "run") == [4]
    assert len(logged(caplog, logging.WARNING)) == 1
    assert f"record_max_bytes is {LIMIT:,}" in caplog.text


@pytest.mark.parametrize("steps", [3, 1])
def test_an_earlier_recording_is_kept_beside_the_new_one(steps: int, tmp_path: Path) -> None:
    for count in range(1, 1 + steps):
        made = recording(tmp_path / "run")
        for _ in range(count):
            made.call(CALL)
        made.close()
    assert contents(tmp_path / "run") == list(range(steps, 0, -1))


def test_another_file_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter").write_text("dear")
    with pytest.raises(RecordingError, match="letter exists and is not a recording; choose"):
        recording(tmp_path / "letter")
    assert (tmp_path / "letter").read_text() == "dear"


def test_an_empty_file_is_used(tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    recording(tmp_path / "run").close()
    assert [one.name for one in tmp_path.iterdir()] == ["run"]


def test_a_folder_that_is_not_there_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        recording(tmp_path / "nowhere" / "run")


# -- when it cannot go on ---------------------------------------------------


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_ends_the_recording_with_one_line(caplog: pytest.LogCaptureFixture) -> None:
    made = recording(Path("/dev/full"))
    for _ in range(20):
        made.call(CALL)
        made.outcome(b"outcome")
    made.close()
    assert "No space left" in made.ended
    assert len(logged(caplog, logging.WARNING)) == 1
    assert "recording to /dev/full has stopped: it failed: [Errno 28]" in caplog.text


class HalfFile:
    """A disk that fills up now."""

    def __init__(self, sound: Any) -> None:
        self._sound = sound

    def write(self, content: bytes) -> int:
        return self._sound.write(content[:8])

    def close(self) -> None:
        self._sound.close()


@pytest.mark.parametrize("last", ["call", "close"])
def test_a_short_write_ends_the_recording(
    last: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = recording(tmp_path / "run")
    monkeypatch.setattr(made, "_file", HalfFile(made._file))  # pyright: ignore[reportPrivateUsage]
    made.call(CALL) if last == "call" else made.close()
    assert made.ended.startswith("failed: 8 of ")
    made.call(CALL)
    made.close()
    assert (tmp_path / "run").read_bytes()[: len(BEGIN)] == BEGIN
    assert len(logged(caplog, logging.WARNING)) == 1


def test_a_file_that_cannot_be_begun_ends_the_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = recording(tmp_path / "run")

    def refuse(*_: object) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr("paceline.sched.replay.recording.opened", refuse)
    for _ in range(10):
        made.call(CALL)
    assert made.ended == "failed: read-only"
    assert contents(tmp_path / "run") == [4]
    assert len(logged(caplog, logging.WARNING)) == 1


def test_a_state_that_would_fill_a_file_ends_the_recording(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    begins = iter([BEGIN, BEGIN + b"s" * LIMIT])
    made = recording(tmp_path / "run", begin=lambda: next(begins))
    for _ in range(10):
        made.call(CALL)
    assert made.ended == "full"
    assert contents(tmp_path / "run") == [4]
    assert "bytes of state; raise record_max_bytes" in caplog.text


def test_a_state_that_cannot_be_written_ends_the_recording(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def begin() -> bytes:
        if made_once:
            raise RecordingError("the state of a scheduler with a _thread.lock cannot be recorded")
        made_once.append(True)
        return BEGIN

    made_once: list[bool] = []
    made = recording(tmp_path / "run", begin=begin)
    for _ in range(10):
        made.call(CALL)
    assert made.ended == "full"
    assert "with a _thread.lock cannot be recorded" in caplog.text


def test_a_call_that_no_file_can_hold_ends_the_recording(tmp_path: Path) -> None:
    made = recording(tmp_path / "run")
    made.call(b"c" * LIMIT)
    assert made.ended == "full"
