"""A recorded scheduler writes every call, compactly, and decides as one that is not recorded."""

import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline import PacelineError, Plan, Request, RequestError, Scheduler, StepResult
from paceline.core.capabilities import StepCost, StepTimes
from paceline.core.errors import ConfigError
from paceline.sched.replay.reader import Reader, RecordingEnd
from paceline.sched.replay.recorded_scheduler import RecordedScheduler
from paceline.sched.replay.records import RecordingError, RecordKind
from paceline.sched.replay.replayer import Replay
from paceline.sched.transfers.swapping import Rates
from tests.sched.recorded_runs import Trouble
from tests.seeds import seeds

# Public methods that change nothing, or nothing that decides what a scheduler does.
READS = {"cache_events", "check", "check_transfer", "explain", "snapshot", "why"}
OWN = {"close", "create"}
SIZES: dict[str, Any] = {"max_num_seqs": 4, "max_model_len": 64, "num_blocks": 64}


def recorded(path: Path, **other: Any) -> RecordedScheduler:
    return RecordedScheduler.create(**SIZES | {"record": str(path)} | other)


def ask(name: str = "a", tokens: int = 3, **other: Any) -> Request:
    return Request(id=name, prompt=np.arange(tokens), **other)


def result(plan: Plan) -> StepResult:
    rows = plan.rows
    return StepResult(np.full((len(rows), 1), 7, np.int32), rows.samples.astype(np.int32))


def turn(scheduler: Scheduler, now: float = 0.0) -> Plan:
    plan = scheduler.plan(now)
    scheduler.commit(plan, result(plan), now)
    return plan


def busy(scheduler: Scheduler) -> list[dict[str, Any]]:
    """Some of every call; returns the plans."""
    plans: list[dict[str, Any]] = []
    for name in "abc":
        scheduler.submit(ask(name, max_tokens=3), now=0.0)
    with pytest.raises(RequestError):
        scheduler.submit(ask(), now=0.0)
    scheduler.park("b", "grammar", now=0.0)
    plans.append(turn(scheduler).to_dict())
    scheduler.wake("b", now=0.5)
    scheduler.abort("a", now=1.0)
    scheduler.pause()
    plans.append(turn(scheduler, now=1.0).to_dict())
    scheduler.resume()
    scheduler.reset_prefix_cache(reset_running_requests=True, now=1.0)
    plan = scheduler.plan(now=2.0)
    scheduler.retry(plan, now=2.0)
    plan = scheduler.plan(now=2.0)
    scheduler.fail(plan, now=2.0, message="out of memory")
    scheduler.drain()
    plans.append(turn(scheduler, now=3.0).to_dict())
    scheduler.stop(now=4.0, message="a policy is wrong")
    plans.append(turn(scheduler, now=5.0).to_dict())
    return plans


def test_every_method_that_changes_a_scheduler_is_recorded() -> None:
    """A new method is either recorded, or listed here as one that changes nothing."""
    for name, method in inspect.getmembers(Scheduler, inspect.isfunction):
        if name.startswith("_") or name in READS | OWN:
            continue
        assert name in vars(RecordedScheduler), f"{name} is not recorded"
        assert inspect.signature(vars(RecordedScheduler)[name]) == inspect.signature(method)


def test_a_recorded_scheduler_decides_as_one_that_is_not(tmp_path: Path) -> None:
    with recorded(tmp_path / "run") as scheduler:
        assert busy(scheduler) == busy(Scheduler.create(**SIZES))


def test_closing_twice_ends_once(tmp_path: Path) -> None:
    scheduler = recorded(tmp_path / "run")
    assert scheduler.recording.ended == ""
    scheduler.close()
    scheduler.close()
    assert scheduler.recording.ended == "closed"
    assert scheduler.recording.size_bytes == (tmp_path / "run").stat().st_size
    assert Replay(tmp_path / "run").run().steps == 0
    turn(scheduler)
    assert scheduler.recording.size_bytes == (tmp_path / "run").stat().st_size


def test_a_scheduler_that_is_not_recorded_can_be_closed() -> None:
    scheduler = Scheduler.create(**SIZES)
    scheduler.close()
    turn(scheduler)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"record_max_bytes": 1000}, "record_max_bytes is 1000; it must be at least 65536"),
        ({"record_files": 0}, "record_files is 0; it must be positive"),
        ({"record": 3}, "record is 3; it must be of type str"),
    ],
)
def test_settings_of_a_recording_are_checked(
    settings: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        recorded(tmp_path / "run", **settings)


# -- how much it takes ------------------------------------------------------


def test_a_steady_step_takes_the_tokens_and_little_more(tmp_path: Path) -> None:
    running, steps = 64, 20
    many: dict[str, Any] = {"max_num_seqs": running, "max_num_batched_tokens": 512}
    with recorded(tmp_path / "run", **many, num_blocks=512) as scheduler:
        for number in range(running):
            scheduler.submit(ask(f"r{number}"), now=0.0)
        turn(scheduler)
        turn(scheduler)
        before = scheduler.recording.size_bytes
        assert {len(turn(scheduler).rows) for _ in range(steps)} == {running}
        assert scheduler.recording.size_bytes - before <= steps * (running * 4 + 100)


# -- what is written --------------------------------------------------------


def test_a_request_that_cannot_be_written_is_the_clients_fault(tmp_path: Path) -> None:
    with recorded(tmp_path / "run") as scheduler:
        for nonsense in (object(), np.arange(3), [np.arange(3)]):
            with pytest.raises(RequestError, match="request 'a': "):
                scheduler.submit(ask(tenant=nonsense), now=0.0)
        assert scheduler.idle
    assert [found.kind for found in Reader(tmp_path / "run")] == []


def test_a_long_error_is_cut(tmp_path: Path) -> None:
    with recorded(tmp_path / "run") as scheduler:
        with pytest.raises(RequestError):
            scheduler.submit(ask("x" * 5000, tokens=64), now=0.0)
        turn(scheduler)
    refused = [found for found in Reader(tmp_path / "run") if found.kind is RecordKind.REFUSED]
    assert len(refused[0].payload) < 1024
    assert Replay(tmp_path / "run").run().refused == 1


def test_measured_rates_are_replayed(tmp_path: Path) -> None:
    with recorded(tmp_path / "run") as scheduler:
        scheduler.measure(Rates(3.5, 0.1 + 0.2))
    replay = Replay(tmp_path / "run")
    replay.run()
    assert replay.scheduler.state.swapping.rates == Rates(3.5, 0.1 + 0.2)


def test_measured_step_times_are_replayed(tmp_path: Path) -> None:
    times = StepTimes(((1, 0.1), (2, 0.1 + 0.2)), ((2, 0.5),), ((1, 0.4),))
    with recorded(tmp_path / "run") as scheduler:
        scheduler.measure_steps(times)
    replay = Replay(tmp_path / "run")
    replay.run()
    assert replay.scheduler.state.speculation.times == times


def test_a_measured_cost_is_replayed_and_decides_again(tmp_path: Path) -> None:
    with recorded(tmp_path / "run", max_step_s=0.25) as scheduler:
        scheduler.submit(ask("a", tokens=40), 0.0)
        scheduler.measure_cost(StepCost(60_000_000, 1))
        assert [scheduler.plan(0.0).total for _ in range(2)] == [4, 4]
        scheduler.measure_cost(StepCost(120_000_000))
        assert scheduler.plan(0.0).total == 2
    replay = Replay(tmp_path / "run")
    assert replay.run().verified == 3
    assert replay.scheduler.state.cost == StepCost(120_000_000)


def test_drafts_that_were_computed_are_replayed(tmp_path: Path) -> None:
    with recorded(tmp_path / "run", num_speculative_tokens=3, speculation="fixed") as scheduler:
        scheduler.submit(ask("a"), 0.0)
        for _ in range(3):
            plan = scheduler.plan(0.0)
            fewer = np.minimum(plan.rows.drafts, 1)
            found = replace(StepResult.of(plan, {"a": [7]}), computed_drafts=fewer)
            scheduler.commit(plan, found, 0.0)
    replay = Replay(tmp_path / "run")
    replay.run()
    assert scheduler.stats.drafted > 0
    assert replay.divergence is None
    assert replay.scheduler.stats == scheduler.stats


def test_errors_of_recordings_are_ours() -> None:
    assert issubclass(RecordingError, PacelineError)


# -- from file to file ------------------------------------------------------


@pytest.fixture
def tiny_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.core.settings.features.LEAST_RECORD_BYTES", 1)


def files_of(path: Path) -> list[Path]:
    """The files of a recording, oldest first."""
    return sorted(path.parent.glob(f"{path.name}*"), key=number_of, reverse=True)


def number_of(path: Path) -> int:
    return int(path.suffix[1:]) if path.suffix[1:].isdigit() else 0


@pytest.mark.no_cover
@pytest.mark.parametrize("seed", seeds(5))
def test_every_file_of_a_random_run_replays_on_its_own(seed: int, tmp_path: Path) -> None:
    """Whatever policy, discipline, swapping, families, drafts and depth the seed draws."""
    path = tmp_path / "run"
    run = Trouble(seed, path, new_file=0.08)
    run.recorder.close()
    files = files_of(path)
    assert len(files) > 1
    plans: list[dict[str, Any]] = []
    for number, file in enumerate(files, 1):
        replay = Replay(file)
        assert replay.steps_before == len(plans)
        found = [plan.to_dict() for plan in replay.plans()]
        assert replay.divergence is None
        assert replay.summary.verified == replay.summary.steps == len(found)
        last = number == len(files)
        assert replay.reader.ending is (RecordingEnd.CLOSED if last else RecordingEnd.CONTINUED)
        plans += found
    assert plans == run.plans
    assert replay.scheduler.snapshot() == run.recorder.snapshot()
    assert replay.scheduler.stats == run.recorder.stats
    replay.scheduler.check()


@pytest.mark.parametrize("error", [MemoryError("no room"), TypeError("odd")])
def test_a_state_that_cannot_be_written_stops_the_recording_and_not_the_scheduler(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> bytes:
        raise error

    with recorded(tmp_path / "run") as scheduler:
        scheduler.submit(ask(max_tokens=2), now=0.0)
        turn(scheduler)
        monkeypatch.setattr("paceline.sched.replay.checkpoint.Encoder.encoded", fail)
        scheduler.recording.next_file()
        assert scheduler.recording.ended == "full"
        turn(scheduler)
        assert scheduler.idle
    replay = Replay(tmp_path / "run")
    assert replay.run().steps == 1
    assert replay.reader.ending is RecordingEnd.FULL


@pytest.mark.usefixtures("tiny_files")
def test_a_cached_prefix_survives_from_file_to_file(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with recorded(path, record_max_bytes=60_000, block_size=4) as scheduler:
        scheduler.submit(ask("first", tokens=40, max_tokens=1), now=0.0)
        turn(scheduler)
        before = path.stat().st_ino
        while path.stat().st_ino == before:
            turn(scheduler)
        scheduler.submit(ask("second", tokens=41, max_tokens=1), now=1.0)
        assert turn(scheduler).admitted[0].computed == 40
    replay = Replay(path)
    plans = list(replay.plans())
    assert [new.computed for plan in plans for new in plan.admitted] == [40]
    assert replay.divergence is None
    assert "'first'" in replay.scheduler.explain("first")


@pytest.mark.usefixtures("tiny_files")
def test_no_file_grows_beyond_its_limit_and_all_within_it_replays(tmp_path: Path) -> None:
    whole = recorded(tmp_path / "whole")
    head = whole.recording.size_bytes
    plans = busy(whole)
    whole.close()
    endings: set[tuple[str, RecordingEnd]] = set()
    for limit in range(head + 1100, whole.recording.size_bytes + 1200, 7):
        path = tmp_path / f"run{limit}"
        scheduler = recorded(path, record_max_bytes=limit, record_files=1)
        assert busy(scheduler) == plans, "the recording changed a decision"
        scheduler.close()
        assert scheduler.recording.size_bytes == path.stat().st_size <= limit
        replay = Replay(path)
        replay.run()
        assert replay.divergence is None
        endings.add((scheduler.recording.ended, replay.reader.ending))
    assert endings == {("full", RecordingEnd.FULL), ("closed", RecordingEnd.CLOSED)}
