"""A recorder is a scheduler whose calls reach the file: all of them, compactly, within a bound."""

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline import PacelineError, Plan, Request, RequestError, Scheduler, StepResult
from paceline.sched.replay.preamble import Preamble
from paceline.sched.replay.reader import Ending, Reader
from paceline.sched.replay.recorder import ENDED_BYTES, Recorder
from paceline.sched.replay.records import MAGIC, RecordingError
from paceline.sched.replay.replayer import Replay
from paceline.sched.swapping import Rates
from tests.sched.support import small

NOT_OFFERED = {"create", "residency"}  # how one is made, and its insides


def scheduler(**other: Any) -> Scheduler:
    return Scheduler.create(**{"max_num_seqs": 4, "max_model_len": 64, "num_blocks": 64} | other)


def ask(name: str = "a", tokens: int = 3, **other: Any) -> Request:
    return Request(id=name, prompt=np.arange(tokens), **other)


def result(plan: Plan) -> StepResult:
    rows = plan.rows
    return StepResult(np.full((len(rows), 1), 7, np.int32), rows.samples.astype(np.int32))


def turn(calls: Scheduler | Recorder, now: float = 0.0) -> Plan:
    plan = calls.plan(now)
    calls.commit(plan, result(plan), now)
    return plan


def test_a_recorder_offers_what_a_scheduler_does() -> None:
    for name, member in inspect.getmembers(Scheduler):
        if name.startswith("_") or name in NOT_OFFERED:
            continue
        own = inspect.getattr_static(Recorder, name)
        if inspect.isfunction(member):
            assert inspect.signature(own) == inspect.signature(member), name
        else:
            assert isinstance(own, property), name


def test_what_only_asks_passes_through(tmp_path: Path) -> None:
    with Recorder(scheduler(enable_kv_cache_events=True), tmp_path / "run") as recorder:
        recorder.submit(ask(tokens=20), now=0.0)
        turn(recorder)
        inner = recorder.scheduler
        assert recorder.config is inner.config
        assert recorder.stats is inner.stats
        assert (recorder.idle, recorder.unfinished) == (False, 1)
        assert recorder.usage == inner.usage > 0
        assert recorder.explain("a") == inner.explain("a")
        assert recorder.snapshot() == inner.snapshot()
        assert (recorder.why(), recorder.gate) == (inner.why(), inner.gate)
        assert len(recorder.cache_events()) == 1
        recorder.check()


def test_only_a_fresh_scheduler_is_recorded(tmp_path: Path) -> None:
    waiting, used, late = scheduler(), scheduler(), scheduler()
    waiting.submit(ask(), now=0.0)
    used.plan(now=0.0)
    late.abort("nobody", now=3.0)
    for one in (waiting, used, late):
        with pytest.raises(RecordingError, match="never used"):
            Recorder(one, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_earlier_recording_is_kept_beside_the_new_one(tmp_path: Path) -> None:
    for steps in (3, 2, 1):
        with Recorder(scheduler(), tmp_path / "run") as recorder:
            for _ in range(steps):
                turn(recorder)
    assert Replay(tmp_path / "run").run().steps == 1
    assert Replay(tmp_path / "run.old").run().steps == 2
    assert len(list(tmp_path.iterdir())) == 2


def test_another_file_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter").write_text("dear")
    with pytest.raises(RecordingError, match="letter exists and is no recording"):
        Recorder(scheduler(), tmp_path / "letter")
    assert (tmp_path / "letter").read_text() == "dear"


def test_an_empty_file_is_used(tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    Recorder(scheduler(), str(tmp_path / "run")).close()
    assert (tmp_path / "run").read_bytes().startswith(MAGIC)
    assert len(list(tmp_path.iterdir())) == 1


def test_closing_twice_ends_once(tmp_path: Path) -> None:
    recorder = Recorder(scheduler(), tmp_path / "run")
    assert recorder.ended == ""
    recorder.close()
    recorder.close()
    assert recorder.ended == "closed"
    assert recorder.size_bytes == (tmp_path / "run").stat().st_size
    assert Replay(tmp_path / "run").run().steps == 0


# -- the bound --------------------------------------------------------------


def test_no_limit_is_exceeded_and_all_within_it_replays(tmp_path: Path) -> None:
    with Recorder(scheduler(), tmp_path / "whole") as recorder:
        head = recorder.size_bytes
        whole = busy(recorder)
    size = recorder.size_bytes
    endings: set[tuple[str, Ending]] = set()
    for limit in range(head + 15, size + 20, 7):
        recorder = Recorder(scheduler(), tmp_path / "run", limit_bytes=limit)
        assert busy(recorder) == whole, "what is recorded changed what is decided"
        recorder.close()
        assert recorder.size_bytes == recorder.path.stat().st_size <= limit
        replay = Replay(recorder.path)
        summary = replay.run()
        assert replay.divergence is None
        assert summary.steps - summary.verified <= 1
        endings.add((recorder.ended, replay.reader.ending))
    assert endings == {("full", Ending.FULL), ("closed", Ending.CLOSED)}


def busy(recorder: Recorder) -> list[dict[str, Any]]:
    """Some of everything; returns the plans."""
    plans: list[dict[str, Any]] = []
    for name in "abc":
        recorder.submit(ask(name, max_tokens=3), now=0.0)
    with pytest.raises(RequestError):
        recorder.submit(ask(), now=0.0)
    recorder.park("b", "grammar", now=0.0)
    plans.append(turn(recorder).to_dict())
    recorder.wake("b", now=0.5)
    recorder.abort("a", now=1.0)
    recorder.pause()
    plans.append(turn(recorder, now=1.0).to_dict())
    recorder.resume()
    recorder.reset_prefix_cache(reset_running_requests=True, now=1.0)
    plan = recorder.plan(now=2.0)
    recorder.retry(plan, now=2.0)
    plan = recorder.plan(now=2.0)
    recorder.fail(plan, now=2.0, message="out of memory")
    recorder.drain()
    plans.append(turn(recorder, now=3.0).to_dict())
    return plans


def test_a_limit_below_the_settings_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="limit_bytes is 100; the settings take"):
        Recorder(scheduler(), tmp_path / "run", limit_bytes=100)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_ends_the_recording_and_not_the_service() -> None:
    recorder = Recorder(scheduler(), "/dev/full")
    assert "No space left" in recorder.ended
    assert len(busy(recorder)) == 3
    recorder.close()


def test_a_short_write_ends_the_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(scheduler(), tmp_path / "run")
    turn(recorder)
    with recorder._file as sound:  # pyright: ignore[reportPrivateUsage]
        monkeypatch.setattr(recorder, "_file", HalfFile(sound))
        turn(recorder)
    assert recorder.ended == "failed: 8 of 17 bytes were written"
    turn(recorder)
    replay = Replay(recorder.path)
    assert replay.run().steps == 1
    assert replay.reader.ending is Ending.CUT


def test_a_disk_that_fills_up_at_the_end_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(scheduler(), tmp_path / "run")
    with recorder._file as sound:  # pyright: ignore[reportPrivateUsage]
        monkeypatch.setattr(recorder, "_file", HalfFile(sound))
        recorder.close()
    assert recorder.ended == "failed: 8 of 15 bytes were written"


class HalfFile:
    """A disk that fills up now."""

    def __init__(self, sound: Any) -> None:
        self._sound = sound

    def write(self, content: bytes) -> int:
        return self._sound.write(content[:8])

    def close(self) -> None:
        self._sound.close()


# -- how much it takes ------------------------------------------------------


def test_a_steady_step_takes_the_tokens_and_little_more(tmp_path: Path) -> None:
    running, steps = 64, 20
    many = scheduler(max_num_seqs=running, max_num_batched_tokens=512, num_blocks=512)
    with Recorder(many, tmp_path / "run") as recorder:
        for number in range(running):
            recorder.submit(ask(f"r{number}"), now=0.0)
        turn(recorder)
        turn(recorder)
        before = recorder.size_bytes
        assert {len(turn(recorder).rows) for _ in range(steps)} == {running}
        assert recorder.size_bytes - before <= steps * (running * 4 + 100)


# -- what is written --------------------------------------------------------


def test_a_request_that_cannot_be_written_is_the_clients_fault(tmp_path: Path) -> None:
    with Recorder(scheduler(), tmp_path / "run") as recorder:
        for nonsense in (object(), np.arange(3), [np.arange(3)]):
            with pytest.raises(RequestError, match="request 'a': "):
                recorder.submit(ask(tenant=nonsense), now=0.0)
        assert recorder.idle
    assert [found.kind for found in Reader(recorder.path)] == []


def test_measured_rates_are_replayed(tmp_path: Path) -> None:
    with Recorder(scheduler(), tmp_path / "run") as recorder:
        recorder.measure(Rates(3.5, 0.1 + 0.2))
    replay = Replay(recorder.path)
    replay.run()
    assert replay.scheduler.residency.swapping.rates == Rates(3.5, 0.1 + 0.2)


def test_errors_of_recordings_are_ours() -> None:
    assert issubclass(RecordingError, PacelineError)


def test_a_limit_leaves_room_for_the_end(tmp_path: Path) -> None:
    least = len(Preamble.of(small().config).encoded()) + ENDED_BYTES
    with pytest.raises(RecordingError, match=f"limit_bytes is {least - 1}; the settings take"):
        Recorder(small(), tmp_path / "run", limit_bytes=least - 1)
    Recorder(small(), tmp_path / "run", limit_bytes=least).close()
