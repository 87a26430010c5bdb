"""The pipeline: oldest first, one wait for each launch, and no exception but ours."""

from collections import deque

import pytest

from paceline.core.arrays import NO_I32
from paceline.core.capabilities import Capabilities
from paceline.core.constraint import Constraint
from paceline.core.errors import StepError
from paceline.core.plan import NO_ROWS, Plan, StepResult
from paceline.core.request import Request
from paceline.engine.loop.pipeline import Pipeline
from tests.property.grammars import constrained_requests


def plan(step: int, empty: bool = False) -> Plan:
    return Plan(step, NO_ROWS, NO_I32, copies=() if empty else ((1, 2),))


class Device:
    """Fails where it is told to, and counts what it is owed."""

    capabilities = Capabilities()

    def __init__(self, bad_launches: tuple[int, ...] = (), bad_waits: tuple[int, ...] = ()) -> None:
        self.bad_launches, self.bad_waits = bad_launches, bad_waits
        self.owed: deque[int] = deque()
        self.seen: list[int] = []

    def launch(self, plan: Plan) -> None:
        self.seen.append(plan.step)
        if plan.step in self.bad_launches:
            raise OSError("no launch")
        if not plan.empty:
            self.owed.append(plan.step)

    def wait(self) -> StepResult:
        step = self.owed.popleft()
        if step in self.bad_waits:
            raise OSError("no result")
        return StepResult.of(plan(step), {})

    def is_lost(self) -> bool:
        return False

    def close(self) -> None:
        pass


def test_a_pipeline_is_full_at_its_depth() -> None:
    pipeline = Pipeline(Device(), depth=2)
    found: list[bool] = []
    for step in (1, 2):
        found.append(pipeline.full)
        pipeline.launch(plan(step))
    assert [*found, pipeline.full] == [False, False, True]
    pipeline.land()
    assert not pipeline.full


def test_steps_land_in_the_order_of_launch_and_empty_ones_do_not() -> None:
    device = Device()
    pipeline = Pipeline(device, depth=3)
    for step in (1, 2, 3, 4):
        pipeline.launch(plan(step, empty=step == 2))
    assert len(pipeline) == 3
    assert [pipeline.land()[0].step for _ in range(3)] == [1, 3, 4]
    assert device.seen == [1, 2, 3, 4]


def test_a_failed_launch_is_owed_no_result() -> None:
    device = Device(bad_launches=(2,))
    pipeline = Pipeline(device, depth=3)
    pipeline.launch(plan(1))
    with pytest.raises(StepError, match="step 2 failed: OSError: no launch"):
        pipeline.launch(plan(2))
    assert pipeline.suspect is not None
    assert pipeline.suspect.step == 2
    assert len(pipeline) == 1


def test_a_failed_launch_of_nothing_puts_those_in_flight_in_doubt() -> None:
    pipeline = Pipeline(Device(bad_launches=(2,)), depth=3)
    pipeline.launch(plan(1))
    with pytest.raises(StepError):
        pipeline.launch(plan(2, empty=True))
    assert pipeline.suspect is not None
    assert pipeline.suspect.step == 1


def test_of_several_in_flight_the_oldest_is_in_doubt() -> None:
    pipeline = Pipeline(Device(bad_launches=(3,)), depth=3)
    for step in (1, 2):
        pipeline.launch(plan(step))
    with pytest.raises(StepError):
        pipeline.launch(plan(3, empty=True))
    assert pipeline.suspect is not None
    assert pipeline.suspect.step == 1


def test_a_failed_wait_puts_its_own_step_in_doubt() -> None:
    pipeline = Pipeline(Device(bad_waits=(1,)), depth=3)
    for step in (1, 2):
        pipeline.launch(plan(step))
    with pytest.raises(StepError):
        pipeline.land()
    assert pipeline.suspect is not None
    assert pipeline.suspect.step == 1


def test_what_is_abandoned_is_waited_for_all_the_same() -> None:
    device = Device(bad_waits=(1, 2))
    pipeline = Pipeline(device, depth=3)
    for step in (1, 2, 3):
        pipeline.launch(plan(step))
    with pytest.raises(StepError, match="step 1 failed: OSError: no result"):
        pipeline.land()
    pipeline.abandon()
    assert not device.owed
    assert len(pipeline) == 0
    pipeline.launch(plan(4))
    assert pipeline.land()[0].step == 4


def test_two_steps_are_in_flight_at_most_while_a_request_has_a_constraint() -> None:
    constrained = constrained_requests(vocab=7)
    pipeline = Pipeline(Device(), 3, constrained)
    for step in (1, 2):
        pipeline.launch(plan(step))
    assert not pipeline.full
    asked = Request("a", [1], constraint=Constraint.regex("0*"))
    constrained.begin(asked, lambda _: None)
    assert pipeline.full
    constrained.forget("a")
    assert not pipeline.full
