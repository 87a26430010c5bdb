"""Speculation on devices of all kinds: it never costs much time, and saves some where it can."""

from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from paceline import Plan, Request, Scheduler, StepResult
from paceline.core.capabilities import MEASURED_ROWS, StepTimes
from paceline.sched.speculation import Adaptive, Curve
from tests.property.schedules import random_step_times

ALWAYS_WORTH_IT = StepTimes(((1, 1.0), (64, 1.1)), ((1, 1.0), (256, 1.2)))
OUTPUT = 100  # tokens of a request
SEEDS = 16


class TimedDevice:
    """Takes as long for a step as its step times say. A draft of request `i` is right by the
    chance `accept[i]`; which tokens come out makes no difference."""

    def __init__(self, times: StepTimes, accept: list[float], seed: int) -> None:
        self._plain, self._drafted = Curve(times.plain), Curve(times.drafted)
        self._least = Curve(times.least) if times.least else None
        self._accept, self._random = accept, Random(seed)
        self.spent_s, self.tokens = 0.0, 0
        self.longest_s = 0.0  # a step without its drafts

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.spent_s

    def run(self, plan: Plan) -> StepResult:
        rows = plan.rows
        width = rows.count - rows.drafts
        is_decode = bool((width == 1).all())
        base = (self._plain if is_decode else self._drafted).one(int(width.sum()))
        self.longest_s = max(self.longest_s, base)
        least = self._least.one(int(width.sum())) if self._least else 0.0
        self.spent_s += max(self._drafted.one(plan.total), least) if rows.drafts.any() else base
        found: dict[str, list[int]] = {}
        for row in np.flatnonzero(rows.samples).tolist():
            name, right = str(rows.request_id[row]), 0
            while right < rows.drafts[row] and self._random.random() < self._accept[int(name)]:
                right += 1
            found[name] = [7] * (right + 1)
        self.tokens += sum(map(len, found.values()))
        return StepResult.of(plan, found)


def spent(times: StepTimes, accept: list[float], drafts: int, seed: int) -> TimedDevice:
    """Run requests until none is waiting: until then every slot is taken."""
    scheduler = Scheduler.create(
        max_num_seqs=1 + seed % 8,
        max_num_batched_tokens=256,
        max_model_len=512,
        num_blocks=1000,
        num_speculative_tokens=drafts,
    )
    scheduler.measure_steps(times)
    device = TimedDevice(times, accept, seed)
    for name in range(len(accept)):
        request = Request(id=str(name), prompt=[1] * 8, max_tokens=OUTPUT, ignore_eos=True)
        scheduler.submit(request, 0.0)
    while scheduler.view.queued:
        plan = scheduler.plan(0.0)
        scheduler.commit(plan, device.run(plan), 0.0)
    return device


def share_of_speed(seed: int) -> float:
    """Speed with speculation by the speed without, beyond the steps that it begins with.

    The device and how predictable its requests are follow from the seed.
    """
    random = Random(f"device {seed}")
    times = random_step_times(random)
    rate = random.choice([0.0, 0.0, 0.1, 0.5])
    accept = [rate if random.random() < 0.8 else random.random() for _ in range(24)]
    plain, drafting = (spent(times, accept, drafts, seed) for drafts in (0, 4))
    first_s = 2 * Adaptive.FIRST * plain.longest_s
    return drafting.tokens / (drafting.spent_s - first_s) / plain.tokens_per_s


@pytest.mark.parametrize("seed", range(SEEDS))
def test_speculation_costs_at_most_three_hundredths(seed: int) -> None:
    assert share_of_speed(seed) >= 0.97


@pytest.mark.parametrize("seed", range(8))
def test_speculation_saves_time_where_drafts_are_cheap_and_right(seed: int) -> None:
    plain, drafting = (spent(ALWAYS_WORTH_IT, [0.9] * 16, drafts, seed) for drafts in (0, 4))
    assert drafting.tokens_per_s > 2 * plain.tokens_per_s


@pytest.mark.parametrize("seed", range(4))
def test_drafting_begins_again_when_text_becomes_predictable(seed: int) -> None:
    times = StepTimes(((1, 1.0), (64, 3.0)), ((1, 1.1), (256, 8.0)))
    accept = [0.0] * 12 + [1.0] * 24
    plain, drafting = (spent(times, accept, drafts, seed) for drafts in (0, 4))
    assert drafting.tokens_per_s > 1.3 * plain.tokens_per_s


class DraftingDevice:
    """Reads its weights in a second, and computes `knee` positions in that time. A pass of the
    drafter takes `pass_s`. Steps are measured as engines measure them."""

    MOST = 4

    def __init__(self, knee: int, pass_s: float, accept: list[float]) -> None:
        self._knee, self._pass_s, self._accept = knee, pass_s, accept
        self._random, self.spent_s, self.tokens = Random(3), 0.0, 0

    def seconds(self, positions: int, deepest: int) -> float:
        return max(1.0, positions / self._knee) + deepest * self._pass_s

    def times(self) -> StepTimes:
        plain = {rows: self.seconds(rows, 0) for rows in MEASURED_ROWS}
        each = {rows * (1 + self.MOST): rows for rows in MEASURED_ROWS}
        drafted = {size: self.seconds(size, self.MOST) for size in each}
        least = {rows: self.seconds(rows + 1, 1) for rows in MEASURED_ROWS}
        found = StepTimes.measured(plain, drafted, least)
        assert found is not None
        return found

    def run(self, plan: Plan) -> StepResult:
        rows, found = plan.rows, dict[str, list[int]]()
        prompts = (rows.count - rows.drafts > 1).any()
        if not prompts:
            self.spent_s += self.seconds(plan.total, int(rows.drafts.max(initial=0)))
        for row in np.flatnonzero(rows.samples).tolist():
            name, right = str(rows.request_id[row]), 0
            while right < rows.drafts[row] and self._random.random() < self._accept[int(name)]:
                right += 1
            found[name] = [7] * (right + 1)
        self.tokens += 0 if prompts else sum(map(len, found.values()))
        return StepResult.of(plan, found)


def gain(rows: int, drafts: int, device: DraftingDevice) -> float:
    """Tokens per second while `rows` requests decode."""
    sizes = {"max_num_seqs": rows, "max_num_batched_tokens": 4096, "max_model_len": 256}
    scheduler = Scheduler.create(num_blocks=9000, num_speculative_tokens=drafts, **sizes)
    scheduler.measure_steps(device.times())
    for name in range(rows):
        request = Request(id=str(name), prompt=[1] * 4, max_tokens=120, ignore_eos=True)
        scheduler.submit(request, 0.0)
    while scheduler.view.running == rows or not device.tokens:
        plan = scheduler.plan(0.0)
        scheduler.commit(plan, device.run(plan), 0.0)
    return device.tokens / device.spent_s


@pytest.mark.parametrize(("rows", "knee"), [(1, 48), (8, 48), (64, 48), (64, 300), (256, 300)])
def test_drafts_of_all_rows_together_never_take_longer_than_none(rows: int, knee: int) -> None:
    """The head takes a tenth of a step for a draft, of which four of five are right on average."""
    random = Random(rows)
    for accept in ([0.8] * rows, [random.choice([0.6, 1.0]) for _ in range(rows)]):
        plain, drafting = (
            gain(rows, drafts, DraftingDevice(knee, 0.1, accept))
            for drafts in (0, DraftingDevice.MOST)
        )
        assert drafting > (1.8 if accept == [0.8] else 0.985) * plain
        if knee == 300 and rows == 64:
            assert drafting > 1.3 * plain


# -- bugs put in on purpose, which the schedules must notice -----------------

MUTANTS: dict[str, dict[str, Any]] = {
    "wrong drafts cost no allowance": {"verified": lambda self, step: None},
    "every row tries in every step": {"_tries": lambda self, rows, trying, taken, room: trying},
    "the allowance grows too fast": {"EARNED": 0.3},
    "the time of a step is not looked at": {"_base": lambda self, positions, is_decode: 1e9},
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught(name: str) -> None:
    with patch.multiple(Adaptive, **MUTANTS[name]):
        assert any(share_of_speed(seed) < 0.97 for seed in range(SEEDS))
