"""Turns that are run to be timed: which ones, and that nothing of them remains."""

from collections import deque
from typing import Any

import numpy as np
import pytest

from paceline import Scheduler
from paceline.core.capabilities import MEASURED_ROWS, Capabilities, StepTimes
from paceline.core.plan import Plan, StepResult
from paceline.engine.loop.turn_times import CONTEXT, TurnTimer
from paceline.runner.models.model import Model
from paceline.runner.weights.dummy import Dummy
from tests.runner.driving import SETTINGS, drive, requests
from tests.runner.support import tiny
from tests.runner.test_runner import outputs, runner_for

LARGE = {"max_num_seqs": 8, "max_model_len": 2048, "num_blocks": 1024, "num_speculative_tokens": 3}


class Device:
    """A step takes a second, one more for each row if any has drafts, and one more for each
    position."""

    capabilities = Capabilities()

    def __init__(self, computes_prompts: bool = False) -> None:
        self.computes_prompts = computes_prompts
        self.now = 0.0
        self.computed: list[int] = []  # when sequences come
        self.residents: set[int] = set()
        self.most = 0  # of them at once
        self._flight: deque[Plan] = deque()

    def launch(self, plan: Plan) -> None:
        self.residents -= set(plan.released)
        self.residents |= {new.slot for new in plan.admitted}
        self.most = max(self.most, len(self.residents))
        self.computed += [new.computed for new in plan.admitted]
        if plan.admitted and not self.computes_prompts:
            assert plan.start.tolist() == [new.computed for new in plan.admitted]
            assert plan.rows.count.tolist() == [1] * len(plan.admitted)
        if not plan.empty:
            self._flight.append(plan)

    def wait(self) -> StepResult:
        rows = (plan := self._flight.popleft()).rows
        self.now += 1.0 + plan.total + len(rows) * bool(rows.drafts.any())
        ids = np.full((len(rows), 1 + int(rows.drafts.max())), 7, np.int32)
        return StepResult(ids, np.ones(len(rows), np.int32))

    def is_lost(self) -> bool:
        return False

    def close(self) -> None: ...


def timed(device: Device, depth: int = 1, limit_s: float = 1e9, **settings: Any) -> Any:
    config = Scheduler.create(**LARGE | settings).config
    return TurnTimer(device, config, depth, lambda: device.now).measure(limit_s)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_turns_are_timed_without_drafts_with_one_and_with_all(depth: int) -> None:
    device = Device()
    found: StepTimes = timed(device, depth)
    sizes = (1, 2, 4, 8)
    assert found.plain == tuple((rows, 1.0 + rows) for rows in sizes)
    assert found.least == tuple((rows, 2.0 + 2 * rows) for rows in sizes)
    assert found.drafted == tuple((4 * rows, 1.0 + 5 * rows) for rows in sizes)
    assert not device.residents


@pytest.mark.parametrize(
    ("own", "sizes"), [((), (64, 128, 256, 512)), ((100, 300, 700), (100, 300))]
)
def test_prompts_are_timed_in_steps_of_every_size(
    own: tuple[int, ...], sizes: tuple[int, ...]
) -> None:
    device = Device(computes_prompts=True)
    device.capabilities = Capabilities(step_sizes=own)
    of_servers = {"slots_for_others": 4, "long_prefill_token_threshold": 32}
    config = Scheduler.create(**LARGE | {"max_num_batched_tokens": 512} | of_servers).config
    found = TurnTimer(device, config, 2, lambda: device.now).with_prompts(1e9)
    assert found is not None
    assert found.drafted == tuple((size, 1.0 + size) for size in sizes)
    assert found.plain[0] == (1, 2.0)
    assert found.sizes == own
    assert not device.residents


@pytest.mark.parametrize(("slots", "sizes"), [(4, (64,)), (8, (64, 128)), (2, None)])
def test_short_prompts_are_timed_as_far_as_there_are_slots(
    slots: int, sizes: tuple[int, ...] | None
) -> None:
    device = Device(computes_prompts=True)
    short = {"max_num_seqs": slots, "max_model_len": 24, "max_num_batched_tokens": 512}
    config = Scheduler.create(**LARGE | short).config
    found = TurnTimer(device, config, 2, lambda: device.now).with_prompts(1e9)
    assert (found and tuple(size for size, _ in found.drafted)) == sizes
    assert device.most <= slots


def test_no_prompt_is_computed() -> None:
    device = Device()
    timed(device)
    assert set(device.computed) == {CONTEXT - 1}


def test_no_further_size_is_begun_when_time_is_up() -> None:
    found: StepTimes = timed(Device(), limit_s=0.0)
    assert found.plain == ((1, 2.0),)


@pytest.mark.parametrize(
    "small", [{"num_blocks": 100}, {"max_num_seqs": 2}, {"max_num_batched_tokens": 8}]
)
def test_sizes_that_do_not_fit_are_left_out(small: dict[str, int]) -> None:
    found: StepTimes = timed(Device(), **small)
    assert [rows for rows, _ in found.plain] == [1, 2]


def test_a_model_that_is_too_short_for_drafts_is_not_measured() -> None:
    assert timed(Device(), max_model_len=2) is None


def test_a_real_runner_answers_as_if_it_had_not_been_measured() -> None:
    model = Model.load(Dummy(tiny(), seed=3))
    asked = requests()
    plainly, _ = outputs(model, asked)
    scheduler = Scheduler.create(**SETTINGS, num_speculative_tokens=3)
    runner = runner_for(model, scheduler)
    timer = TurnTimer(runner, scheduler.config, 1)
    for found in (timer.measure(1e9), timer.with_prompts(1e9)):
        assert found is not None
        assert found.plain[0][0] == MEASURED_ROWS[0]
    assert drive(scheduler, runner, asked) == plainly
