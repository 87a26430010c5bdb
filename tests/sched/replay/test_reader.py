"""The files of a run, read up to the last whole record; any damage is reported."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline import Request, StepResult
from paceline.sched.replay import reader as reading
from paceline.sched.replay.reader import (
    CutBeginning,
    Reader,
    RecordingEnd,
    files_of_run,
    unnumbered,
)
from paceline.sched.replay.recorded_scheduler import RecordedScheduler
from paceline.sched.replay.records import (
    FORMAT,
    FORMAT_NUMBER,
    HEAD,
    MAGIC,
    RecordingError,
    RecordKind,
    record,
)
from paceline.sched.replay.replayer import Replay
from tests.sched.recorded_runs import Trouble, settings_of, small_run, sound_records, with_settings


@pytest.fixture
def small(tmp_path: Path) -> Path:
    with small_run(tmp_path / "small") as recorder:
        return recorder.recording.path


@pytest.mark.parametrize("number", [2, 3])
def test_a_recording_of_the_formats_before_is_read(number: int, small: Path) -> None:
    with_settings(small, settings_of(small), number=number)
    replay = Replay(small)
    assert replay.run().verified == replay.summary.steps > 0
    assert replay.divergence is None


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    with small_run(tmp_path / "tiny", steps=3) as recorder:
        return recorder.recording.path


@pytest.mark.no_cover
def test_every_cut_replays_what_came_before_it(tiny: Path, tmp_path: Path) -> None:
    content = tiny.read_bytes()
    first = Reader(tiny).read_bytes
    edges = [first]
    for one in sound_records(tiny):
        edges.append(edges[-1] + len(one))
    steps: list[int] = []
    for length in range(first, len(content)):
        cut = tmp_path / "cut"
        cut.write_bytes(content[:length])
        replay = Replay(cut)
        steps.append(replay.run().steps)
        assert replay.divergence is None
        assert replay.reader.ending is (RecordingEnd.OPEN if length in edges else RecordingEnd.CUT)
        assert replay.reader.current.read_bytes == max(edge for edge in edges if edge <= length)
    assert steps == sorted(steps)
    assert (steps[0], steps[-1]) == (0, 3)


@pytest.mark.no_cover
def test_every_changed_byte_is_noticed(tiny: Path, tmp_path: Path) -> None:
    content = tiny.read_bytes()
    first = Reader(tiny).read_bytes
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 1 << ((place + 1) % 8)
        (tmp_path / "changed").write_bytes(changed)
        try:
            replay = Replay(tmp_path / "changed")
        except RecordingError:
            looks_like_a_state = place == first + HEAD.size - 1
            assert place < first or looks_like_a_state
            continue
        replay.run()
        assert replay.reader.ending in (RecordingEnd.DAMAGED, RecordingEnd.CUT)
        assert replay.divergence is None
        assert first <= replay.reader.current.read_bytes <= place


def test_a_length_that_is_damaged_is_no_cut(tiny: Path, tmp_path: Path) -> None:
    """A record that seems to go beyond the end has whole ones behind it, unless it is the last."""
    content = tiny.read_bytes()
    place = Reader(tiny).read_bytes
    for one in sound_records(tiny):
        changed = bytearray(content)
        changed[place + 2] ^= 1
        (tmp_path / "changed").write_bytes(changed)
        replay = Replay(tmp_path / "changed")
        replay.run()
        assert replay.reader.ending is RecordingEnd.DAMAGED
        assert replay.reader.current.read_bytes == place
        place += len(one)
    changed = bytearray(content)
    changed[place + 2] ^= 1
    (tmp_path / "changed").write_bytes(changed)
    reader = Reader(tmp_path / "changed")
    assert len(list(reader)) == len(sound_records(tiny))
    assert reader.ending is RecordingEnd.CUT


def test_a_long_record_that_was_cut_is_no_damage(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torn = tiny.read_bytes() + record(RecordKind.SUBMIT, b"x" * 300)[:-1]
    tiny.write_bytes(torn.replace(record(RecordKind.ENDED, b"closed"), b""))
    for searched in (1000, 200):
        monkeypatch.setattr(reading, "SEARCHED", searched)
        reader = Reader(tiny)
        assert list(reader)
        assert reader.ending is RecordingEnd.CUT


def test_a_record_of_unknown_kind_is_damage(small: Path) -> None:
    head = small.read_bytes()[: Reader(small).read_bytes]
    small.write_bytes(head + record(99, b""))  # pyright: ignore[reportArgumentType]
    replay = Replay(small)
    assert replay.run().steps == 0
    assert replay.reader.ending is RecordingEnd.DAMAGED


@pytest.mark.parametrize(
    ("content", "complaint"), [(b"", "is empty"), (b"\x89pace", "ends inside its settings")]
)
def test_a_file_without_a_beginning_is_refused(
    content: bytes, complaint: str, tmp_path: Path
) -> None:
    (tmp_path / "other").write_bytes(content)
    with pytest.raises(CutBeginning, match=complaint):
        Reader(tmp_path / "other")


@pytest.mark.parametrize("content", [b"step,tokens\n1,2\n", b"\0" * 4096])
def test_another_file_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(content)
    with pytest.raises(RecordingError, match="other is not a recording of a scheduler"):
        Replay(tmp_path / "other")


def test_a_damaged_beginning_is_refused(small: Path) -> None:
    content = bytearray(small.read_bytes())
    content[len(MAGIC) + 40] ^= 1
    small.write_bytes(content)
    with pytest.raises(RecordingError, match="is damaged: its settings cannot be read"):
        Replay(small)


def test_a_missing_file_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Replay(tmp_path / "missing")


@pytest.mark.parametrize("kept", [0, 1, 2, 5, 40, 400])
def test_a_header_cut_short_is_refused(kept: int, small: Path) -> None:
    small.write_bytes(small.read_bytes()[: len(MAGIC) + kept])
    with pytest.raises(CutBeginning, match="ends inside its settings: nothing in it can be"):
        Replay(small)


@pytest.mark.parametrize("number", [1, FORMAT + 1])
def test_another_format_is_refused(number: int, small: Path) -> None:
    with_settings(small, settings_of(small), number)
    told = f"has format {number}; this paceline reads formats 2 to {FORMAT}"
    with pytest.raises(RecordingError, match=told):
        Replay(small)


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"warp": 9}, "unknown setting 'warp'"),
        ({"policy": "coin_toss"}, "no policy 'coin_toss'"),
        ({"speculation": "nowhere.Any"}, "no speculation 'nowhere.Any'"),
        ({"discipline": "turnstile"}, "no discipline 'turnstile'"),
        ({"block_size": -1}, "block_size is -1"),
        ({"block_size": "four"}, "settings do not fit here"),
        ({"tenant_weights": 3}, "settings do not fit here"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    changed: dict[str, Any], complaint: str, small: Path
) -> None:
    with_settings(small, settings_of(small) | changed)
    with pytest.raises(RecordingError, match=complaint):
        Replay(small)


def test_settings_of_the_wrong_form_are_refused(small: Path) -> None:
    small.write_bytes(MAGIC + FORMAT_NUMBER.pack(FORMAT) + record(RecordKind.SETTINGS, b"[1]"))
    with pytest.raises(RecordingError, match="settings do not fit here"):
        Replay(small)


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
