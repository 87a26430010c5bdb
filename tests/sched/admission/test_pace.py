"""The time of a step."""

from typing import Any

import pytest

from paceline import ConfigError, Plan, Scheduler
from paceline.core.capabilities import StepCost
from paceline.sched.admission.pace import DECODES, PROMPTS, Pace
from tests.sched.admission.limit_support import View, arrival, config, residents
from tests.sched.support import answer, ask

MS = 10**6


def pace(cost: StepCost | None = None, waiting: int = 0, **settings: float) -> Pace:
    """Steps of 100 ms; a position costs 1 ms."""
    view = View()
    view.cost, view.waiting = cost or StepCost(MS), waiting
    limit = Pace.create(config(max_step_s=0.1, **settings), view)
    assert limit is not None
    return limit


def paced(**settings: Any) -> Scheduler:
    """16 positions take the time of a step."""
    usual = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "num_blocks": 256, "block_size": 4}
    scheduler = Scheduler.create(**usual | {"max_model_len": 256, "max_step_s": 0.016} | settings)
    scheduler.measure_cost(StepCost(MS))
    return scheduler


def done(scheduler: Scheduler, now: float = 0.0) -> Plan:
    plan = scheduler.plan(now)
    scheduler.commit(plan, answer(plan), now)
    scheduler.check()
    return plan


def counts(plan: Plan) -> dict[str, int]:
    return dict(zip(plan.rows.labels, plan.rows.count.tolist(), strict=True))


def test_without_the_setting_or_a_measurement_nothing_is_cut() -> None:
    assert Pace.create(config(), View()) is None
    limit = Pace.create(config(max_step_s=0.1), View())
    assert limit is not None
    assert not limit.counts
    assert limit.clip(residents(1, 900)).tolist() == [1, 900]
    assert limit.clip(arrival(900)).tolist() == [900]
    used: dict[str, int] = {}
    limit.spend(arrival(900), used)
    assert not used


def test_a_prompt_has_what_decodes_leave_and_a_quarter_at_least() -> None:
    assert pace().clip(residents(1, 900, 1)).tolist() == [1, 98, 1]
    assert pace().clip(residents(*[1] * 90, 900)).tolist()[-1] == 25
    assert pace().clip(residents(1, 30, 1)).tolist() == [1, 30, 1]


def test_positions_cost_more_behind_many_others() -> None:
    limit = pace(StepCost(MS, 100_000))
    assert limit.clip(residents(900, start=(10,))).tolist() == [50]
    assert limit.clip(arrival(900, start=40)).tolist() == [20]


def test_the_oldest_prompt_has_half_and_the_others_share_the_rest() -> None:
    assert pace().clip(residents(900, 900, 900)).tolist() == [50, 25, 25]
    assert pace().clip(residents(900, 10, 900)).tolist() == [50, 10, 40]
    assert pace().clip(residents(900, 10, 20)).tolist() == [70, 10, 20]
    assert pace().clip(residents(20, 900, 900)).tolist() == [20, 40, 40]


def test_each_prompt_has_a_position() -> None:
    slow = pace(StepCost(40 * MS))
    assert slow.clip(residents(9, 9, 9, 1)).tolist() == [1, 1, 1, 1]
    slowest = pace(StepCost(400 * MS))
    assert slowest.clip(arrival(9)).tolist() == [1]
    assert slowest.clip(arrival(9, used={PROMPTS: 400 * MS})).tolist() == [0]


def test_residents_leave_half_to_those_who_wait() -> None:
    assert pace(waiting=1).clip(residents(900)).tolist() == [50]
    limit = pace(waiting=2)  # one is behind the first
    used = {PROMPTS: 50 * MS, DECODES: 10 * MS}
    assert limit.clip(arrival(900, used=used)).tolist() == [20]
    assert pace(waiting=1).clip(arrival(900, used=used)).tolist() == [40]
    assert pace().clip(arrival(900, used={PROMPTS: 100 * MS})).tolist() == [0]


def test_what_rows_use_up_is_counted() -> None:
    limit, used = pace(), dict[str, int]()
    limit.spend(residents(1, 40, 1), used)
    limit.spend(arrival(7), used)
    limit.spend(arrival(1), used)
    assert used == {PROMPTS: 48 * MS, DECODES: 2 * MS}


def test_a_short_prompt_passes_by_a_long_one() -> None:
    """The neighbour has its four tokens in five steps, and the long prompt goes on meanwhile."""
    scheduler = paced()
    scheduler.submit(ask("long", 200), 0.0)
    assert counts(done(scheduler)) == {"long": 16}
    scheduler.submit(ask("short", 6, max_tokens=4), 1.0)
    steps = [counts(done(scheduler, 1.0)) for _ in range(5)]
    assert steps == [{"long": 8, "short": 6}] + 3 * [{"long": 15, "short": 1}] + [{"long": 16}]


def test_a_short_prompt_is_not_held_up_by_many_long_ones() -> None:
    """Without the limit, eight steps of 64 positions end before it begins."""
    scheduler = paced()
    for number in range(5):
        scheduler.submit(ask(f"long{number}", 100), 0.0)
    for _ in range(4):
        done(scheduler)
    scheduler.submit(ask("short", 6, max_tokens=1), 1.0)
    steps = 0
    while scheduler.view.is_live("short"):
        done(scheduler, 1.0)
        steps += 1
    assert steps <= 8


def test_a_lone_prompt_takes_as_many_steps_as_its_time_needs() -> None:
    scheduler = paced()
    scheduler.submit(ask("long", 200, max_tokens=1), 0.0)
    steps = 0
    while not scheduler.idle:
        done(scheduler)
        steps += 1
    assert steps == -(-200 // 16)


def test_a_request_that_waits_for_time_is_explained() -> None:
    scheduler = paced(max_step_s=0.002)
    scheduler.submit(ask("long", 200), 0.0)
    done(scheduler)
    for name in "abc":
        scheduler.submit(ask(name, 6), 1.0)
    plan = scheduler.plan(1.0)
    assert "c" not in counts(plan)
    assert "for time in a step (max_step_s)" in scheduler.why()["c"]


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"enable_chunked_prefill": False, "max_model_len": 64}, "max_step_s cuts prompts"),
        ({"discipline": "prefill_first"}, "see max_wait"),
        ({"disable_chunked_mm_input": True}, "cuts images"),
        ({"policy": "longest", "fill_positions": 8}, "remove max_step_s"),
        ({"max_step_s": -1.0}, "max_step_s"),
    ],
)
def test_settings_that_contradict_it_are_refused(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        paced(**settings)


def test_a_cost_is_positive() -> None:
    with pytest.raises(ConfigError, match="the cost of a position is 0 ns"):
        StepCost(0)
    assert StepCost.measured(0.4, 0.2, 10, 5) == StepCost(40 * MS, 0)


def test_prompts_share_their_time_only_with_requests_that_can_join() -> None:
    scheduler = paced(max_num_seqs=2)
    for name in "abc":
        scheduler.submit(ask(name, 100, max_tokens=2), 0.0)
    done(scheduler)
    assert sum(counts(done(scheduler)).values()) == 16  # c waits, and has no slot
