"""The timeline of an engine."""

import json
import logging
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline import Plan, Request, Scheduler, StepResult
from paceline.engine.core.engine import Engine
from paceline.engine.core.observers import NOT_OBSERVED
from paceline.engine.trace.step_trace import StepTrace
from paceline.engine.trace.trace_file import TraceFile
from paceline.sim.clock import VirtualClock
from paceline.sim.runner import SimulatedDevice, SimulatedRunner


class Ticks(VirtualClock):
    """A clock that goes on by a millisecond whenever it is read."""

    def __call__(self) -> float:
        self.advance_to(super().__call__() + 1e-3)
        return super().__call__()


def sampled(plan: Plan) -> StepResult:
    return StepResult(np.full((len(plan.rows), 1), 7, np.int32), plan.rows.samples.astype(np.int32))


def traced(path: Path, depth: int) -> list[dict[str, Any]]:
    """The events of a run in which requests give way."""
    scheduler = Scheduler.create(
        num_blocks=12, block_size=4, max_num_seqs=4, max_model_len=40, max_num_batched_tokens=32
    )
    clock = Ticks()
    observer = StepTrace(TraceFile(path, "paceline"), scheduler, clock)
    runner = SimulatedRunner(SimulatedDevice(sampled, lambda plan: 0.05), clock)
    engine = Engine(scheduler, runner, clock, depth, observer=observer)
    for number in range(6):
        engine.submit(Request(f"r{number}", range(10), max_tokens=8 + number, ignore_eos=True))
    while not engine.idle:
        engine.turn()
    engine.turn(while_idle=True)
    engine.close()
    return json.loads(path.read_text())


@pytest.mark.parametrize("depth", [1, 2])
def test_slices_of_a_track_do_not_overlap(tmp_path: Path, depth: int) -> None:
    events = traced(tmp_path / "trace.json", depth)
    tracks = {one["tid"]: one["args"]["name"] for one in events if one["name"] == "thread_name"}
    slices: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for one in events:
        if one["ph"] == "X":
            slices[tracks[one["tid"]]].append(one)
    assert set(slices) == {"host", "device"}
    for track in slices.values():
        ordered = sorted(track, key=lambda one: one["ts"])
        for one, next_ in pairwise(ordered):
            assert one["ts"] + one["dur"] <= next_["ts"] + 0.01
    assert {one["name"] for one in slices["host"]} == {"plan", "launch", "wait", "commit", "report"}
    steps = [int(one["name"].removeprefix("step ")) for one in slices["device"]]
    assert steps == list(range(steps[0], steps[0] + len(steps)))
    assert any(one["args"].get("preempted") for one in slices["device"])


def test_lives_have_phases_without_gaps(tmp_path: Path) -> None:
    events = traced(tmp_path / "trace.json", 1)
    lives: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for one in events:
        if one["ph"] in "be":
            lives[one["id"]].append(one)
    assert sorted(lives) == [f"r{number}" for number in range(6)]
    for life in lives.values():
        begins, ends = life[::2], life[1::2]
        assert [one["name"] for one in begins] == [one["name"] for one in ends]
        assert [one["ts"] for one in ends[:-1]] == [one["ts"] for one in begins[1:]]
        assert begins[0]["name"] == "waiting"
        assert begins[-1]["name"] in ("decode", "computing again")
    assert any(one["name"] == "preempted" for life in lives.values() for one in life)


def test_a_trace_that_was_cut_can_be_read(tmp_path: Path) -> None:
    file = TraceFile(tmp_path / "trace.json", "paceline")
    file.slice("host", "plan", 1.0, 1.5)
    file.flush()
    text = (tmp_path / "trace.json").read_text()
    assert json.loads(text.rstrip().rstrip(",") + "]")[-1]["dur"] == 5e5
    file.close()


def test_a_file_that_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = str(tmp_path / "missing" / "trace.json")
    assert StepTrace.writing(path, Scheduler.create()) is NOT_OBSERVED
    assert "cannot write a trace" in caplog.text


def test_a_full_disk_ends_the_trace_alone(caplog: pytest.LogCaptureFixture) -> None:
    file = TraceFile("/dev/full", "paceline")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            file.counter("requests", 0.0, {"running": 1})
            file.flush()
        file.close()
    assert len(caplog.records) == 1
    assert "No space left" in caplog.text


def test_the_trace_of_an_engine_that_died_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text("of the engine that died")
    StepTrace.writing(str(path), Scheduler.create()).close()
    assert json.loads(path.read_text())
    assert (tmp_path / "trace-before.json").read_text() == "of the engine that died"
