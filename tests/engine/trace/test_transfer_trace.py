"""The transfers of a connector in a timeline."""

from pathlib import Path
from typing import Any

from paceline import Plan, Scheduler
from paceline.cli.main import main
from paceline.engine.trace.step_trace import TransferTrace
from paceline.engine.trace.trace_file import TraceFile
from paceline.sched.replay.checkpoint import PlansInFlight, SchedulerCheckpoint
from paceline.sched.replay.recorded_scheduler import RecordedScheduler
from tests.engine.trace.timeline import Timeline
from tests.sched.scripted_connector import ScriptedConnector
from tests.sched.support import PROMPT, SMALL, answer, ask

BLOCK_BYTES = 100


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
    scheduler.view.watch_transfers(TransferTrace(file, times, BLOCK_BYTES))
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
