"""The timeline of an engine: its steps, swaps and requests."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline import Plan, Request, Scheduler, StepResult
from paceline.engine.loop.engine import Engine
from paceline.engine.trace.step_trace import StepTrace
from paceline.engine.trace.trace_file import TraceFile
from paceline.testing.runner import SimulatedDevice, SimulatedRunner, VirtualClock
from tests.engine.trace.timeline import Timeline

BLOCK_BYTES = 1000


class Ticks(VirtualClock):
    """A clock that goes on by a millisecond whenever it is read."""

    def __call__(self) -> float:
        self.advance_to(super().__call__() + 1e-3)
        return super().__call__()


def sampled(plan: Plan) -> StepResult:
    return StepResult(np.full((len(plan.rows), 1), 7, np.int32), plan.rows.samples.astype(np.int32))


def traced(path: Path, depth: int, **settings: Any) -> Timeline:
    """The events of a run in which requests give way."""
    scheduler = Scheduler.create(
        num_blocks=12,
        block_size=4,
        max_num_seqs=4,
        max_model_len=40,
        max_num_batched_tokens=32,
        **settings,
    )
    clock = Ticks()
    observer = StepTrace(TraceFile(path, "engine"), scheduler, clock, BLOCK_BYTES)
    runner = SimulatedRunner(SimulatedDevice(sampled, lambda plan: 0.05), clock)
    engine = Engine(scheduler, runner, clock, depth, observer=observer)
    for number in range(6):
        engine.submit(Request(f"r{number}", range(10), max_tokens=8 + number, ignore_eos=True))
    while not engine.idle:
        engine.turn()
    engine.turn(while_idle=True)
    engine.close()
    return Timeline(path)


@pytest.mark.parametrize("depth", [1, 2])
def test_tracks_of_the_host_and_the_device(tmp_path: Path, depth: int) -> None:
    tracks = traced(tmp_path / "trace.json", depth).tracks()
    assert set(tracks) == {"host", "device"}
    assert {one["name"] for one in tracks["host"]} == {"plan", "launch", "wait", "commit", "report"}
    steps = [int(one["name"].removeprefix("step ")) for one in tracks["device"]]
    assert steps == list(range(steps[0], steps[0] + len(steps)))
    assert any(one["args"].get("preempted") for one in tracks["device"])


@pytest.mark.parametrize("depth", [1, 2])
def test_swaps_are_slices_of_their_steps(tmp_path: Path, depth: int) -> None:
    settings = {"preemption_mode": "swap", "swap_space": 30, "enable_prefix_caching": False}
    tracks = traced(tmp_path / "trace.json", depth, **settings).tracks()
    steps = {one["name"]: one for one in tracks["device"]}
    for track, counted in (("swap out", "swapped out"), ("swap in", "swapped in")):
        assert tracks[track]
        for one in tracks[track]:
            step, blocks = steps[one["name"]], one["args"]["blocks"]
            assert (one["ts"], one["dur"]) == (step["ts"], step["dur"])
            assert blocks == step["args"][counted] > 0
            assert one["args"]["bytes"] == blocks * BLOCK_BYTES


def test_lives_have_phases_without_gaps(tmp_path: Path) -> None:
    lives = traced(tmp_path / "trace.json", 1).spans("request")
    assert sorted(lives) == [f"r{number}" for number in range(6)]
    for name, (whole, *phases) in lives.items():
        begins, ends = zip(*phases, strict=True)
        assert whole[0]["name"] == name
        assert (whole[0]["ts"], whole[1]["ts"]) == (begins[0]["ts"], ends[-1]["ts"])
        assert [one["ts"] for one in ends[:-1]] == [one["ts"] for one in begins[1:]]
        assert begins[0]["name"] == "waiting"
        assert begins[-1]["name"] in ("decode", "computing again")
    assert any(begin["name"] == "preempted" for life in lives.values() for begin, _ in life)


def test_requests_that_are_open_at_the_end_have_lives_too(tmp_path: Path) -> None:
    scheduler, clock, path = Scheduler.create(max_num_seqs=1), VirtualClock(), tmp_path / "trace"
    trace = StepTrace(TraceFile(path, "engine"), scheduler, clock)
    for name in "ab":
        scheduler.submit(Request(name, range(3), max_tokens=2), 0.0)
    scheduler.commit(plan := scheduler.plan(1.0), sampled(plan), 2.0)
    clock.advance_to(3.0)
    trace.close()
    phases = {
        name: [(begin["name"], end["ts"] / 1e6) for begin, end in life[1:]]
        for name, life in Timeline(path).spans("request").items()
    }
    assert phases == {"a": [("waiting", 1.0), ("prefill", 2.0), ("decode", 3.0)]} | {
        "b": [("waiting", 3.0)]
    }
