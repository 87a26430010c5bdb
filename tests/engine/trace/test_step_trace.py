"""The timeline of an engine: its steps, swaps, requests and transfers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline import Plan, Request, Scheduler, StepResult
from paceline.cli.main import main
from paceline.engine.loop.engine import Engine
from paceline.engine.trace.step_trace import StepTrace, TransferTrace
from paceline.engine.trace.trace_file import TraceFile
from paceline.sched.replay.checkpoint import PlansInFlight, SchedulerCheckpoint
from paceline.sched.replay.recorded_scheduler import RecordedScheduler
from paceline.testing.runner import SimulatedDevice, SimulatedRunner, VirtualClock
from tests.engine.trace.timeline import Timeline
from tests.sched.scripted_connector import ScriptedConnector
from tests.sched.support import PROMPT, SMALL, answer, ask

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


TRANSFERRED_BLOCK_BYTES = 100


class Times:
    """The clock of a run: a second passes between two calls of the scheduler."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def next(self) -> float:
        self.now += 1.0
        return self.now


def step(scheduler: Scheduler, times: Times) -> Plan:
    plan = scheduler.plan(times.next())
    scheduler.commit(plan, answer(plan), times.next())
    return plan


def transfers(scheduler: Scheduler, connector: ScriptedConnector, times: Times) -> None:
    """A load that fails after two blocks, a store, and blocks that another engine reads."""
    scheduler.connect(connector)
    scheduler.submit(ask("a", PROMPT, max_tokens=2), times.now)
    step(scheduler, times)  # the load begins in the plan at 1
    (load,) = connector.fetched
    connector.end(load, bad=2, reason="a block is damaged")
    step(scheduler, times)  # the load ends in the plan at 3; the first token is stored at 4
    step(scheduler, times)
    connector.fetched.clear()
    connector.end_all()
    for transfer, _ in connector.finishes:
        connector.end(transfer)
    step(scheduler, times)


def spans(path: Path) -> dict[str, tuple[float, float, dict[str, Any]]]:
    found = Timeline(path).spans("transfer")
    return {
        begin["name"]: (begin["ts"] / 1e6, end["ts"] / 1e6, begin["args"])
        for ((begin, end),) in found.values()
    }


def connector() -> ScriptedConnector:
    found = ScriptedConnector(supply=3)
    found.hands_over, found.handed = True, {"from": "here"}
    return found


EXPECTED = {
    "load": (
        1.0,
        3.0,
        {"request": "a", "blocks": 3, "good blocks": 2, "reason": "a block is damaged"},
    ),
    "store": (4.0, 7.0, {"request": "a", "blocks": 3}),
    "hand over": (6.0, 7.0, {"request": "a", "blocks": 3}),
}


def test_loads_stores_and_what_is_handed_over(tmp_path: Path) -> None:
    path, times, scheduler = tmp_path / "trace.json", Times(), Scheduler.create(**SMALL)
    file = TraceFile(path, "engine")
    scheduler.view.watch_transfers(TransferTrace(file, times, TRANSFERRED_BLOCK_BYTES))
    transfers(scheduler, connector(), times)
    file.flush()
    expected = {
        name: (begin, end, values | {"bytes": 300})
        for name, (begin, end, values) in EXPECTED.items()
    }
    assert spans(path) == expected


def test_a_recording_knows_the_transfers(tmp_path: Path) -> None:
    run, out, times = tmp_path / "run.paceline", tmp_path / "trace.json", Times()
    recorder = RecordedScheduler.create(**SMALL, record=str(run))
    transfers(recorder, connector(), times)
    recorder.close()
    assert main(["replay", str(run), "--trace", str(out)]) == 0
    assert spans(out) == EXPECTED


def test_a_timeline_is_no_part_of_the_state_in_a_recording(tmp_path: Path) -> None:
    file, times, scheduler = TraceFile(tmp_path / "trace.json", "x"), Times(), Scheduler.create()
    without = SchedulerCheckpoint(vars(scheduler), PlansInFlight()).encoded(scheduler.config)
    scheduler.view.watch_transfers(TransferTrace(file, times))
    state = SchedulerCheckpoint(vars(scheduler), PlansInFlight()).encoded(scheduler.config)
    assert state == without
