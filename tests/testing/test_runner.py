"""The simulated runner and its virtual clock: steps run one after another."""

import pytest

from paceline.core.plan import Plan, StepResult
from paceline.core.request import Request
from paceline.sched.scheduler import Scheduler
from paceline.testing.runner import SimulatedDevice, SimulatedRunner, VirtualClock


def plans(count: int) -> list[Plan]:
    """Plans of consecutive steps, none of which is committed."""
    scheduler = Scheduler.create(max_num_seqs=2, num_blocks=64, block_size=4)
    scheduler.submit(Request(id="a", prompt=[1, 2, 3], max_tokens=40), now=0.0)
    return [scheduler.plan(0.0) for _ in range(count)]


def empty_plan() -> Plan:
    return Scheduler.create().plan(0.0)


def execute(plan: Plan) -> StepResult:
    return StepResult.of(plan, {"a": [plan.step]} if not plan.empty else {})


def test_waiting_moves_the_clock_to_the_end_of_the_oldest_step() -> None:
    clock = VirtualClock()
    runner = SimulatedRunner(SimulatedDevice(execute, lambda plan: float(plan.step)), clock)
    first, second = plans(2)
    runner.launch(first)
    runner.launch(second)
    assert clock() == 0.0
    assert runner.wait().ids[0, 0] == first.step
    assert clock() == 1.0
    assert runner.wait().ids[0, 0] == second.step
    assert clock() == 3.0


def test_a_step_begins_when_it_is_launched_if_the_device_is_free() -> None:
    clock = VirtualClock()
    runner = SimulatedRunner(SimulatedDevice(execute), clock)
    first, second = plans(2)
    runner.launch(first)
    runner.wait()
    clock.advance_to(10.0)
    runner.launch(second)
    runner.wait()
    assert clock() == 11.0


def test_an_empty_step_takes_time_only_while_nothing_runs() -> None:
    clock = VirtualClock()
    runner = SimulatedRunner(SimulatedDevice(execute, empty_step_s=0.25), clock)
    runner.launch(empty_plan())
    assert clock() == 0.25
    runner.launch(plans(1)[0])
    runner.launch(empty_plan())
    assert clock() == 0.25


def test_an_error_of_the_device_is_kept_and_raised() -> None:
    def broken(plan: Plan) -> StepResult:
        raise AssertionError("stale KV")

    runner = SimulatedRunner(SimulatedDevice(broken), VirtualClock())
    with pytest.raises(AssertionError, match="stale KV"):
        runner.launch(plans(1)[0])
    assert isinstance(runner.failure, AssertionError)


def test_a_clock_stands_still_until_it_is_moved() -> None:
    clock = VirtualClock()
    assert [clock(), clock()] == [0.0, 0.0]
    clock.advance_to(2.5)
    assert clock() == 2.5


def test_a_clock_never_runs_backwards() -> None:
    clock = VirtualClock(3.0)
    clock.advance_to(1.0)
    assert clock() == 3.0
