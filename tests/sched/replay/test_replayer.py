"""A recording replays to the same plans, and whatever is wrong with it is told."""

import os
import re
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline import PacelineError, Plan, Request, Scheduler
from paceline.kv.pool import BlockPool
from paceline.sched.policies.fcfs import Fcfs
from paceline.sched.replay.reader import Reader, RecordingEnd
from paceline.sched.replay.recorded_scheduler import RecordedScheduler
from paceline.sched.replay.records import RecordKind
from paceline.sched.replay.replayer import Replay
from tests.sched.recorded_runs import Trouble, settings_of, small_run, sound_records, with_settings
from tests.seeds import seeds

ROOT = Path(__file__).parents[3]


def told(scheduler: Scheduler, ids: list[str]) -> dict[str, str]:
    lives: dict[str, str] = {}
    for name in ids:
        with suppress(PacelineError):
            lives[name] = scheduler.explain(name)
    return lives


CONNECTOR_KINDS = {  # of runs with a connector: test_connector_answers.py
    RecordKind.CONNECT,
    RecordKind.OFFERED,
    RecordKind.KEPT,
    RecordKind.TRANSFERRED,
    RecordKind.HANDED_OVER,
}
RARE_KINDS = {RecordKind.SETTINGS, RecordKind.STATE, RecordKind.STOP, RecordKind.ENDED}


def replayed(seed: int, path: Path) -> RecordedScheduler:
    """A random run, which replays to identical plans and state."""
    run = Trouble(seed, path)
    with run.recorder as recorder:
        replay = Replay(path)
    plans = [plan.to_dict() for plan in replay.plans()]
    assert replay.divergence is None
    assert plans == run.plans
    assert replay.summary.verified == replay.summary.steps == len(plans)
    assert replay.summary.refused == run.refused.total()
    assert replay.reader.ending is RecordingEnd.CLOSED
    assert replay.scheduler.snapshot() == recorder.snapshot()
    assert replay.scheduler.stats == recorder.stats
    assert told(replay.scheduler, run.ids) == told(recorder, run.ids)
    replay.scheduler.check()
    return recorder


@pytest.mark.no_cover
def test_random_runs_with_every_kind_of_call_and_of_trouble_replay(tmp_path: Path) -> None:
    kinds: Counter[RecordKind] = Counter()
    seen: Counter[str] = Counter()
    for seed in seeds(10):
        path = tmp_path / f"seed {seed}"
        seen.update(replayed(seed, path).stats.to_dict())
        kinds.update(found.kind for found in Reader(path))
    assert set(RecordKind) - kinds.keys() == RARE_KINDS | CONNECTOR_KINDS
    troubles = ("preemptions", "stale_rows", "drafted", "forks", "copied_blocks")
    assert min(kinds[RecordKind.REFUSED], *(seen[name] for name in troubles)) > 10
    assert min(seen["swapped_out_blocks"], seen["swapped_in_blocks"], seen["failed_rows"]) > 3


def test_the_same_run_is_recorded_to_the_same_bytes(tmp_path: Path) -> None:
    for path in (tmp_path / "run", tmp_path / "again"):
        with Trouble(1, path).recorder:
            pass
    assert (tmp_path / "run").read_bytes() == (tmp_path / "again").read_bytes()


# -- a small run, taken apart -----------------------------------------------


@pytest.fixture
def small(tmp_path: Path) -> Path:
    with small_run(tmp_path / "small") as recorder:
        return recorder.recording.path


def test_replay_can_stop_at_a_step_and_go_on(small: Path) -> None:
    replay = Replay(small)
    assert replay.run(until=5).steps == 5
    assert replay.reader.ending is RecordingEnd.UNREAD
    assert replay.scheduler.snapshot()["step"] == 5
    assert [plan.step for plan in replay.plans(until=7)] == [6, 7]
    assert next(replay.plans()).step == 8
    assert replay.run().steps == 12
    assert replay.reader.ending is RecordingEnd.CLOSED


# -- divergence -------------------------------------------------------------


def test_another_policy_diverges_at_the_step_that_it_changes(small: Path) -> None:
    with_settings(small, settings_of(small) | {"policy": "priority"})
    replay = Replay(small)
    plans = list(replay.plans())
    assert replay.divergence is not None
    assert replay.divergence.step == len(plans) == 1
    told = str(replay.divergence)
    assert told.startswith("step 1: the plans differ in the rows and their tokens")
    assert "admissions, preemptions, copies or ends" in told
    assert "9 positions in 2 rows (r2: 7, r1: 2), new r2, r1" in told
    assert replay.summary.verified == 0


def test_only_the_parts_that_differ_are_named(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backwards = BlockPool.take
    monkeypatch.setattr(BlockPool, "take", lambda pool, count: backwards(pool, count)[::-1])
    replay = Replay(small)
    replay.run()
    assert replay.divergence is not None
    assert "the plans differ in the blocks handed out; the replay has" in replay.divergence.what


def test_a_defect_in_a_policy_is_found(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fcfs, "rank", lambda _, sequence: (-sequence.serial,), raising=False)
    replay = Replay(small)
    replay.run()
    assert replay.divergence is not None
    assert replay.divergence.step == 1


def test_a_call_refused_then_and_accepted_now_diverges(tmp_path: Path) -> None:
    with small_run(tmp_path / "run", max_num_queued_reqs=3) as recorder:
        recorder.drain()
        with pytest.raises(PacelineError, match="draining"):
            recorder.submit(Request(id="late", prompt=np.arange(3)), now=40.0)
    calls = [one for one in sound_records(recorder.recording.path) if one[4] != RecordKind.DRAIN]
    head = recorder.recording.path.read_bytes()[: Reader(recorder.recording.path).read_bytes]
    recorder.recording.path.write_bytes(head + b"".join(calls))
    replay = Replay(recorder.recording.path)
    assert replay.run().refused == 0
    assert str(replay.divergence) == (
        "step 12: the recorded run refused a call that the replay accepts: "
        "the scheduler is draining and takes no new requests"
    )


def test_a_call_accepted_then_and_refused_now_diverges(small: Path) -> None:
    with_settings(small, settings_of(small) | {"max_num_queued_reqs": 2})
    replay = Replay(small)
    replay.run()
    assert str(replay.divergence) == (
        "step 0: the recorded run accepted a call that the replay refuses: "
        "2 requests are already waiting (max_num_queued_reqs)"
    )


def submitted_last(path: Path) -> RecordedScheduler:
    """A run whose very last call submits a prompt of 12 tokens."""
    recorder = RecordedScheduler.create(max_num_seqs=2, max_model_len=16, record=str(path))
    recorder.submit(Request(id="a", prompt=np.arange(3)), now=0.0)
    recorder.plan(now=1.0)
    recorder.submit(Request(id="b", prompt=np.arange(12)), now=2.0)
    return recorder


def test_the_last_call_too_may_be_refused_only_now(tmp_path: Path) -> None:
    submitted_last(tmp_path / "run").close()
    with_settings(tmp_path / "run", settings_of(tmp_path / "run") | {"max_model_len": 8})
    replay = Replay(tmp_path / "run")
    assert replay.run().verified == 1
    assert str(replay.divergence).startswith(
        "step 1: the recorded run accepted a call that the replay refuses: request 'b': a prompt"
    )


def test_what_came_of_the_last_call_of_a_killed_process_is_unknown(tmp_path: Path) -> None:
    """Its refusal would have gone out with the next call."""
    recorder = submitted_last(tmp_path / "run")
    with pytest.raises(PacelineError):
        recorder.submit(Request(id="b", prompt=np.arange(12)), now=3.0)
    replay = Replay(tmp_path / "run")
    replay.run()
    assert (replay.reader.ending, replay.divergence) == (RecordingEnd.OPEN, None)
    recorder.close()
    replay = Replay(tmp_path / "run")
    assert replay.run().refused == 1
    assert (replay.reader.ending, replay.divergence) == (RecordingEnd.CLOSED, None)


def test_a_refused_call_moves_the_clock_as_it_did(tmp_path: Path) -> None:
    recorder = RecordedScheduler.create(
        max_num_seqs=2, max_model_len=8, record=str(tmp_path / "run")
    )
    with pytest.raises(PacelineError, match="leaves no room"):
        recorder.submit(Request(id="long", prompt=np.arange(8)), now=50.0)
    recorder.submit(Request(id="a", prompt=np.arange(3)), now=7.0)
    recorder.plan(now=8.0)
    recorder.close()
    replay = Replay(recorder.recording.path)
    summary = replay.run()
    assert (summary.requests, summary.refused, summary.verified) == (1, 1, 1)
    assert replay.scheduler.state.now == 50.0


def test_a_plan_that_only_the_replay_refuses_diverges(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> Plan:
        raise PacelineError("no")

    monkeypatch.setattr(Scheduler, "plan", refuse)
    replay = Replay(small)
    assert list(replay.plans()) == []
    assert (
        str(replay.divergence) == "step 0: the recorded run planned a step that the replay refuses"
    )


# -- incidents --------------------------------------------------------------


def test_a_crash_inside_a_plan_happens_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = Scheduler.plan

    def broken(scheduler: Scheduler, now: float) -> Plan:
        assert scheduler.stats.steps < 3, "a defect"
        return sound(scheduler, now)

    with monkeypatch.context() as patch, small_run(tmp_path / "run", steps=3) as recorder:
        patch.setattr(Scheduler, "plan", broken)
        with pytest.raises(AssertionError, match="a defect"):
            recorder.plan(now=99.0)
        replay = Replay(recorder.recording.path)
        with pytest.raises(AssertionError, match="a defect"):
            replay.run()
        assert replay.summary.verified == 3
    replay = Replay(
        recorder.recording.path
    )  # with the defect gone, the step has a plan and no digest
    assert len(list(replay.plans())) == 4
    assert (replay.summary.steps, replay.summary.verified) == (4, 3)


KILLED = """
import os, signal, sys
sys.path[:0] = sys.argv[2:]
from pathlib import Path
from tests.sched.recorded_runs import small_run, settings_of, sound_records, with_settings
recorder = small_run(Path(sys.argv[1]), steps=6)
recorder.plan(now=99.0)
os.kill(os.getpid(), signal.SIGKILL)
"""


def python(script: str, *arguments: str, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, *arguments, str(ROOT), str(ROOT / "src")],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_killed_process_loses_no_call(tmp_path: Path) -> None:
    python(KILLED, str(tmp_path / "run"))
    replay = Replay(tmp_path / "run")
    assert [plan.step for plan in replay.plans()] == list(range(1, 8))
    assert replay.reader.ending is RecordingEnd.OPEN
    assert replay.summary.verified == 6  # the digest of the last plan goes out with the next call


ELSEWHERE = """
import sys
sys.path[:0] = sys.argv[2:]
from paceline.sched.replay.replayer import Replay
replay = Replay(sys.argv[1])
print(replay.run(), replay.divergence, hash("paceline"))
"""


def test_another_process_replays_to_the_same(tmp_path: Path) -> None:
    for seed in (3, 8):
        with Trouble(seed, tmp_path / "run").recorder as recorder:
            pass
        summary = Replay(recorder.recording.path).run()
        done = [
            python(ELSEWHERE, str(recorder.recording.path), hash_seed=seed) for seed in ("1", "2")
        ]
        said = [one.stdout.rsplit(maxsplit=1) for one in done]
        assert said[0][1] != said[1][1], "the two hashed alike, so this shows nothing"
        assert said[0][0] == said[1][0] == f"{summary} None", done


# -- the guide --------------------------------------------------------------


def test_the_guide_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    guide = (ROOT / "docs" / "guides" / "replay.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    for block in blocks:
        exec(compile(block, "docs/guides/replay.md", "exec"), scope)
    assert len(blocks) >= 2
    assert "None" in capsys.readouterr().out
    assert (tmp_path / "run.paceline").exists()
