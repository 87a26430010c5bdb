"""Steps that are run to be timed: which ones, and that nothing of them remains."""

from collections import Counter
from itertools import count
from typing import Any

import numpy as np
import pytest

from paceline import Request, Scheduler
from paceline.core.capabilities import Points
from paceline.core.plan import Plan, StepResult
from paceline.core.settings.config import Config
from paceline.runner.models.model import Model
from paceline.runner.step_times import StepTimer
from paceline.runner.weights.dummy import Dummy
from tests.runner.driving import SETTINGS, drive, requests
from tests.runner.support import tiny
from tests.runner.test_runner import outputs, runner_for

CONFIG = Config.of(
    **SETTINGS | {"max_model_len": 100, "max_num_batched_tokens": 30}, num_speculative_tokens=4
)


class Slow:
    """A runner whose steps take a second, and one more for each position that it computes."""

    def __init__(self, proposes: int = 99) -> None:
        self.now = 0.0
        self.residents: set[int] = set()
        self.ran: Counter[tuple[int, int]] = Counter()
        self._proposes = proposes
        self._plan: Any = None

    def launch(self, plan: Plan) -> None:
        self.residents -= set(plan.released)
        new = {admitted.slot for admitted in plan.admitted}
        assert not new & self.residents
        self.residents |= new
        self.now += 100.0 * len(new)  # the coming of sequences is not timed
        self._plan = plan

    def wait(self) -> StepResult:
        rows = self._plan.rows
        assert set(rows.slot.tolist()) <= self.residents
        drafts = np.minimum(rows.drafts, self._proposes)
        self.now += 1.0 + len(rows) + int(drafts.sum())
        self.ran[len(rows), int(rows.drafts.sum())] += 1
        result = StepResult.of(self._plan, {label: [7] for label in rows.labels})
        return StepResult(result.ids, result.count, computed_drafts=drafts)


def timed(runner: Slow, limit_s: float = 1e9) -> tuple[Points, Points]:
    times = StepTimer(runner, CONFIG, lambda: runner.now).measure(limit_s)
    assert times is not None
    return times.plain, times.drafted


def test_steps_of_several_sizes_are_timed_with_drafts_and_without() -> None:
    runner = Slow()
    plain, drafted = timed(runner)
    assert plain == ((1, 2.0), (2, 3.0), (4, 5.0), (8, 9.0))
    assert [size for size, _ in drafted] == [2, 4, 5, 8, 10, 16, 20]  # 30 positions at most
    assert all(seconds == 1.0 + size for size, seconds in drafted)
    assert not runner.residents


def test_positions_are_those_that_were_computed() -> None:
    """A proposer that has fewer drafts has steps of fewer positions."""
    _, drafted = timed(Slow(proposes=2))
    assert [size for size, _ in drafted] == [2, 3, 4, 6, 8, 12, 16]


def test_a_proposer_without_drafts_leaves_steps_without_them() -> None:
    plain, drafted = timed(Slow(proposes=0))
    assert drafted == plain[: len(drafted)]


def test_no_further_size_is_begun_when_time_is_up() -> None:
    plain, drafted = timed(Slow(), limit_s=0.0)
    assert [size for size, _ in plain] == [1]
    assert [size for size, _ in drafted] == [2, 5]


@pytest.fixture(scope="module")
def model() -> Model:
    return Model.load(Dummy(tiny(), seed=3))


@pytest.mark.parametrize("length", [2, 3, 5, 8, 11, 40])
def test_a_short_model_is_measured_too(model: Model, length: int) -> None:
    given = {"max_model_len": length, "num_blocks": 10, "max_num_seqs": 3}
    given |= {"max_num_batched_tokens": 12, "num_speculative_tokens": 4}
    scheduler = Scheduler.create(**SETTINGS | given)
    runner, clock = runner_for(model, scheduler), iter(count(1.0)).__next__
    times = StepTimer(runner, scheduler.config, clock).measure(1e9)
    if length == 2:
        assert times is None, "where no draft fits there is nothing to measure"
        return
    assert times is not None
    assert [size for size, _ in times.plain] == [1, 2]


def test_a_real_runner_answers_as_if_it_had_not_been_measured(model: Model) -> None:
    asked: list[Request] = requests()
    plainly, _ = outputs(model, asked)
    scheduler = Scheduler.create(**SETTINGS, num_speculative_tokens=3)
    runner = runner_for(model, scheduler)
    times = StepTimer(runner, scheduler.config, iter(count(1.0)).__next__).measure(1e9)
    assert times is not None
    assert [size for size, _ in times.plain] == [1, 2, 4, 8]
    assert [size for size, _ in times.drafted] == [2, 4, 8, 16, 32]
    assert drive(scheduler, runner, asked) == plainly
