"""The learned step times: a curve by positions and what attention reads, from the steps shown."""

from random import Random

import pytest

from paceline import Request, Scheduler, StepResult
from paceline.core.capabilities import StepCost, StepTimes
from paceline.sched.service.step_model import StepLoad, StepModel


def actual(load: StepLoad) -> float:
    """A device that reads weights for 10 ms, and computes 20,000 positions a second beyond 200."""
    products = max(0.010, load.positions / 20_000)
    return products + load.reads * 1e-8 + load.pairs * 2e-9


def taught(steps: int) -> StepModel:
    model, random = StepModel(), Random(1)
    for _ in range(steps):
        rows = random.randint(1, 64)
        decodes = StepLoad(rows, rows, rows * random.randint(100, 2000))
        load = decodes.with_prompt(random.randint(2, 2000), random.choice((0, 0, 20_000)))
        for one in (decodes, load):
            model.learn(one, actual(one))
    return model


def test_times_are_learned_from_steps() -> None:
    model = taught(400)
    for load in (
        StepLoad(32, 32, 32_000),
        StepLoad(8, 8, 8_000).with_prompt(600),
        StepLoad(8, 8, 8_000).with_prompt(1500),
        StepLoad(1, 1, 500).with_prompt(1000, 20_000),
    ):
        assert model.seconds(load) == pytest.approx(actual(load), rel=0.15)
    assert 1.0 <= model.margin < 1.6


def test_a_step_has_as_many_positions_as_fit() -> None:
    model, load = taught(400), StepLoad(16, 16, 16_000)
    fits = model.fitting(load, 4096, 0.040)
    assert 550 < fits < 1000
    assert actual(load.with_prompt(fits)) < 0.046
    assert model.fitting(load, 4096, 0.040, start=20_000) < fits / 1.5
    assert model.fitting(load, 4096, 0.001) == 0
    assert model.fitting(load, 64, 1.0) == 64
    assert StepModel().fitting(load, 4096, 0.001) == 4096  # nothing is known


def test_an_accident_changes_little() -> None:
    model, load = taught(400), StepLoad(16, 16, 16_000).with_prompt(512)
    before = model.seconds(load)
    model.learn(load, 30.0)
    assert model.seconds(load) < 1.5 * before


def test_measured_steps_are_seeds_that_steps_correct() -> None:
    model, load = StepModel(), StepLoad().with_prompt(256)
    model.seed_cost(StepCost(position_ns=1_000_000, read_ns=10))
    assert model.seconds(load) == pytest.approx(0.256, rel=0.01)
    cost = model.cost(256)
    assert cost is not None
    assert (cost.position_ns, cost.read_ns) == (1_000_000, 10)
    for _ in range(40):
        model.learn(load, 0.128)
    assert model.seconds(load) == pytest.approx(0.128, rel=0.05)
    model.seed(StepTimes(((1, 0.01), (8, 0.02)), ((4, 0.03),)))
    assert model.seconds(StepLoad(8, 8)) == pytest.approx(0.02)


def test_where_steps_are_filled_up_a_prompt_fills_them() -> None:
    """Up to 256 positions, a step takes as long as one of 64, 128 or 256."""
    filled = lambda size: next(one for one in (64, 128, 256, size) if one >= size)
    model, random = StepModel(), Random(1)
    points = tuple((size, size / 1000) for size in (64, 128, 256))
    model.seed(StepTimes(((1, 0.01),), points, sizes=(64, 128, 256)))
    assert model.seconds(StepLoad().with_prompt(129)) == pytest.approx(0.256, rel=0.01)
    load = StepLoad(1, 1, 100)
    assert model.fitting(load, 1000, 0.2) == 127
    assert model.fitting(load, 100, 0.2) == 100
    assert model.fitting(load, 1000, 0.06) <= 1
    for _ in range(200):
        size = random.randint(2, 256)
        model.learn(StepLoad().with_prompt(size), filled(size) / 2000)
    assert model.seconds(StepLoad().with_prompt(65)) == pytest.approx(0.064, rel=0.02)
    assert model.fitting(load, 1000, 0.1) == 127


def test_steps_of_any_length_are_learned() -> None:
    """Also after accidents, and where attention explains all of the time."""
    for seed in range(20):
        model, random = StepModel(), Random(seed)
        for _ in range(400):
            size, start = random.randint(2, 900), random.choice((0, 100, 4000))
            load = StepLoad(8, 8, random.randint(8, 20_000)).with_prompt(size, start)
            model.learn(load, random.choice((1e-9, 0.001, 0.02, 3.0)))
            assert 0 <= model.fitting(load, 500, 0.02) <= 500
            assert model.seconds(load) >= 0.0


def test_the_margin_follows_the_noise_of_steps() -> None:
    for noise, low, high in ((0.0, 1.0, 1.01), (0.3, 1.2, 1.45)):
        model, random, load = StepModel(), Random(2), StepLoad().with_prompt(300)
        for _ in range(400):
            model.learn(load, 0.02 * (1.0 + random.uniform(-noise, noise)))
        assert low <= model.margin <= high


def test_the_scheduler_learns_from_the_times_that_it_is_called_with() -> None:
    """A step begins when it is planned, or when the one before it ended."""
    scheduler = Scheduler.create(policy="slo", max_num_seqs=4)
    scheduler.submit(Request(id="a", prompt=list(range(100)), max_tokens=50), now=0.0)
    plans = [scheduler.plan(now=0.0), scheduler.plan(now=0.01)]
    for step in range(1, 30):
        plan = plans.pop(0)
        scheduler.commit(plan, StepResult.of(plan, {"a": [7]}), now=0.05 * step)
        plans.append(scheduler.plan(now=0.05 * step + 0.001))
    assert scheduler.state.times.seconds(StepLoad(1, 1, 120)) == pytest.approx(0.05, rel=0.1)
    assert scheduler.state.times.seconds(StepLoad(1, 100, 0, 5050)) == pytest.approx(0.05, rel=0.1)


def test_on_a_cpu_prompts_are_cut_by_what_steps_really_take() -> None:
    """Other processes came since the cost was measured: a position takes three times as long."""
    scheduler = Scheduler.create(max_step_s=0.25, max_num_batched_tokens=512, max_num_seqs=4)
    scheduler.measure_cost(StepCost(position_ns=1_000_000))
    now, sizes = 0.0, list[int]()
    for number in range(6):
        prompt = list(range(number * 10_000, number * 10_000 + 1500))
        scheduler.submit(Request(id=f"r{number}", prompt=prompt, max_tokens=1), now)
        while not scheduler.idle:
            plan = scheduler.plan(now)
            now += 0.003 * plan.total
            samples = {f"r{number}": [7]} if plan.rows.samples.any() else {}
            scheduler.commit(plan, StepResult.of(plan, samples), now)
            sizes.append(plan.total)
    assert sizes[0] == 250
    assert max(sizes[-8:]) == pytest.approx(83, rel=0.1)
