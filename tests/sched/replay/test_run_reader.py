"""The files of a run are found and read together, and no others."""

from pathlib import Path

import numpy as np
import pytest

from paceline import Request, StepResult
from paceline.sched.replay.reader import RecordingEnd, files_of_run, unnumbered
from paceline.sched.replay.recorded_scheduler import RecordedScheduler
from paceline.sched.replay.replayer import Replay
from tests.sched.recorded_runs import Trouble


def rotated(path: Path, files: int, kept: int = 10) -> RecordedScheduler:
    """A run with one step in each file."""
    scheduler = RecordedScheduler.create(num_blocks=8, record=str(path), record_files=kept)
    scheduler.submit(Request(id="a", prompt=np.arange(3), max_tokens=40), now=0.0)
    for number in range(files):
        if number:
            scheduler.recording.next_file()
        plan = scheduler.plan(now=float(number))
        scheduler.commit(plan, StepResult.of(plan, {"a": [7]}), now=float(number))
    scheduler.close()
    return scheduler


def names(path: Path) -> list[str]:
    return [one.name for one in files_of_run(path)]


def test_files_are_found_oldest_first(tmp_path: Path) -> None:
    rotated(tmp_path / "run", files=3)
    assert names(tmp_path / "run") == ["run.2", "run.1", "run"]
    assert names(tmp_path / "run.1") == ["run.2", "run.1"]
    assert names(tmp_path / "run.2") == ["run.2"]


def test_files_of_an_earlier_run_are_left_out(tmp_path: Path) -> None:
    rotated(tmp_path / "run", files=2)
    rotated(tmp_path / "run", files=2)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["run", "run.1", "run.2", "run.3"]
    assert names(tmp_path / "run") == ["run.1", "run"]
    assert names(tmp_path / "run.2") == ["run.3", "run.2"]


def test_files_before_a_gap_are_left_out(tmp_path: Path) -> None:
    rotated(tmp_path / "run", files=4)
    (tmp_path / "run.2").write_bytes((tmp_path / "run.3").read_bytes())  # it ends elsewhere
    assert names(tmp_path / "run") == ["run.1", "run"]
    (tmp_path / "run.1").unlink()
    assert names(tmp_path / "run") == ["run"]


@pytest.mark.parametrize("other", [b"", b"x", b"x" * 4096])
def test_another_file_beside_a_recording_is_left_out(other: bytes, tmp_path: Path) -> None:
    rotated(tmp_path / "run", files=1)
    (tmp_path / "run.1").write_bytes(other)
    assert names(tmp_path / "run") == ["run"]


def test_a_file_that_cannot_be_read_stands_alone(tmp_path: Path) -> None:
    """Whoever opens it gets the error."""
    assert names(tmp_path / "missing") == ["missing"]
    (tmp_path / "letter").write_text("dear")
    assert names(tmp_path / "letter") == ["letter"]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("run", ("run", 0)),
        ("run.2", ("run", 2)),
        ("run.paceline", ("run.paceline", 0)),
        ("run.paceline.12", ("run.paceline", 12)),
        ("run.0", ("run.0", 0)),
        ("run.02", ("run.02", 0)),
        ("run.²", ("run.²", 0)),
    ],
)
def test_the_number_of_an_older_file(name: str, found: tuple[str, int]) -> None:
    base, number = unnumbered(Path(name))
    assert (base.name, number) == found


@pytest.mark.parametrize("seed", range(3))
def test_a_random_run_replays_across_its_files(seed: int, tmp_path: Path) -> None:
    path = tmp_path / "run"
    run = Trouble(seed, path, new_file=0.08)
    run.recorder.close()
    files = files_of_run(path)
    assert len(files) > 1
    replay = Replay(*files)
    assert [plan.to_dict() for plan in replay.plans()] == run.plans
    assert replay.divergence is None
    assert replay.summary.verified == len(run.plans)
    assert replay.scheduler.snapshot() == run.recorder.snapshot()


def test_a_replay_goes_on_across_files_after_a_stop(tmp_path: Path) -> None:
    rotated(tmp_path / "run", files=3)
    replay = Replay(*files_of_run(tmp_path / "run"))
    assert [plan.step for plan in replay.plans(until=2)] == [1, 2]
    assert replay.reader.ending is RecordingEnd.UNREAD
    assert [plan.step for plan in replay.plans()] == [3]
    assert replay.reader.ending is RecordingEnd.CLOSED


def test_reading_stops_at_a_file_that_is_cut(tmp_path: Path) -> None:
    rotated(tmp_path / "run", files=2)
    files = files_of_run(tmp_path / "run")
    files[0].write_bytes(files[0].read_bytes()[:-5])
    replay = Replay(*files)
    assert [plan.step for plan in replay.plans()] == [1]
    assert replay.reader.ending is RecordingEnd.CUT
    assert replay.reader.current.path.name == "run.1"
