"""A recording as frames: every step is in them, and there are not too many."""

from pathlib import Path
from random import Random

import pytest

from paceline.core.errors import RequestError
from paceline.core.plan import Plan
from paceline.core.request import Request
from paceline.engine.live.feed import RECORDS
from paceline.engine.live.frames import Frame
from paceline.sched.replay.recorded_scheduler import RecordedScheduler
from paceline.sched.replay.replayer import Replay
from paceline.testing.oracle import OracleRunner
from paceline.viewer.replayed import ReplayedRun


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Plan], int]:
    """A file, its plans that are not empty, and how many tokens were generated."""
    path = tmp_path_factory.mktemp("live") / "run"
    random, now, plans = Random(1), 0.0, list[Plan]()
    sizes = {"num_blocks": 24, "block_size": 4, "max_num_seqs": 6, "max_model_len": 48}
    runner = OracleRunner(24, 4, 50)
    with RecordedScheduler.create(**sizes, record=str(path)) as scheduler:
        for step in range(150):
            if random.random() < 0.2:
                prompt = [random.randrange(3) for _ in range(random.randint(1, 20))]
                scheduler.submit(Request(f"r{step}", prompt, max_tokens=9), now)
            plan = scheduler.plan(now)
            now += 0.1
            scheduler.commit(plan, runner.run(plan), now)
            plans += [] if plan.empty else [plan]
        return path, plans, scheduler.stats.sampled


def counted(frames: list[Frame]) -> int:
    return sum(1 + one.left_out for frame in frames for one in frame.steps) + frames[-1].left_out


def test_all_steps_are_in_the_frames(recording: tuple[Path, list[Plan], int]) -> None:
    path, plans, tokens = recording
    run = ReplayedRun(Replay(path))
    frames = run.run()
    records = [record for frame in frames for record in frame.steps]
    assert [one.step for one in records] == [plan.step for plan in plans]
    assert [one.rows for one in records] == [len(plan.rows) for plan in plans]
    assert sum(one.tokens for one in records) == frames[-1].totals.tokens == tokens
    assert all(one.split.wait == pytest.approx(0.1) for one in records)
    seats = {(one.slot, one.request_id) for frame in frames for one in frame.seats}
    rows = [zip(plan.rows.slot.tolist(), plan.rows.request_id, strict=True) for plan in plans]
    assert seats == {pair for pairs in rows for pair in pairs}
    ended = run.life(records[0].cells and frames[0].seats[0].request_id)
    assert ended["state"].startswith("FINISHED")
    with pytest.raises(RequestError, match="no request 'nobody'"):
        run.life("nobody")


def test_a_long_recording_has_fewer_frames_of_longer_periods(
    recording: tuple[Path, list[Plan], int],
) -> None:
    path, plans, tokens = recording
    run = ReplayedRun(Replay(path), most_frames=4)
    frames = run.run()
    assert len(frames) <= 5
    assert run.frame_s > 1.0
    assert counted(frames) == len(plans)
    assert all(len(frame.steps) <= RECORDS for frame in frames)
    generated = sum(frame.tokens_per_s * (frame.time - frame.since) for frame in frames)
    assert generated == pytest.approx(tokens)
    assert [frame.since for frame in frames[1:]] == [frame.time for frame in frames[:-1]]
