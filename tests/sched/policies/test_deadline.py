"""Earliest slack first, for first tokens and for later ones; and what is refused for being late."""

from typing import Any

import pytest

from paceline import Finish, Scheduler, StepResult
from tests.sched.support import answer, ask, commit, finish_all, small, state, step


def deadline(**settings: Any) -> Scheduler:
    return small(**{"policy": "deadline"} | settings)


def waiting(scheduler: Scheduler) -> list[str]:
    return scheduler.snapshot()["waiting"]


def preempt_all(scheduler: Scheduler, now: float) -> None:
    """Lose the result of a step, so that everybody waits again."""
    scheduler.retry(scheduler.plan(now), now)


# -- order ------------------------------------------------------------------


def test_the_first_due_goes_first() -> None:
    scheduler = deadline()
    scheduler.submit(ask("late", 4, deadline=9.0), now=0.0)
    scheduler.submit(ask("soon", 4, deadline=2.0), now=0.0)
    scheduler.submit(ask("middle", 4, deadline=5.0), now=0.0)
    assert waiting(scheduler) == ["soon", "middle", "late"]


def test_due_counts_from_arrival() -> None:
    scheduler = deadline()
    scheduler.submit(ask("patient", 4, deadline=9.0), now=0.0)
    scheduler.submit(ask("hurried", 4, deadline=3.0), now=8.0)
    scheduler.submit(ask("long on its way", 4, deadline=5.0, arrival=2.0), now=8.0)
    assert waiting(scheduler) == ["long on its way", "patient", "hurried"]


def test_one_without_a_deadline_is_given_one_and_so_ages() -> None:
    scheduler = deadline(default_deadline_s=10.0)
    scheduler.submit(ask("without", 4), now=0.0)
    scheduler.submit(ask("earlier", 4, deadline=3.0), now=6.0)
    scheduler.submit(ask("later", 4, deadline=3.0), now=8.0)
    assert waiting(scheduler) == ["earlier", "without", "later"]


def test_of_two_that_are_due_at_once_the_one_with_more_work_goes_first() -> None:
    scheduler = deadline(prefill_tokens_per_s=10.0)
    scheduler.submit(ask("short", 5, deadline=4.0), now=0.0)
    scheduler.submit(ask("long", 30, deadline=4.0), now=0.0)
    scheduler.submit(ask("longer but later", 40, deadline=8.0), now=0.0)  # 8 - 4 > 4 - 3
    assert waiting(scheduler) == ["long", "short", "longer but later"]


def test_cached_work_takes_no_time() -> None:
    scheduler = deadline(prefill_tokens_per_s=10.0, max_num_seqs=1)
    scheduler.submit(ask("warm", range(33), 1), now=0.0)
    finish_all(scheduler)
    scheduler.submit(ask("cached", [*range(32), 99], deadline=4.0), now=0.0)
    scheduler.submit(ask("uncached", 20, deadline=4.0), now=0.0)
    assert waiting(scheduler) == ["uncached", "cached"]


def test_slack_grows_when_the_work_is_done_by_somebody_else_meanwhile() -> None:
    scheduler = deadline(prefill_tokens_per_s=10.0, max_num_seqs=1, long_prefill_token_threshold=8)
    scheduler.submit(ask("first", range(33), 2, deadline=1.0), now=0.0)
    step(scheduler)
    scheduler.submit(ask("same", [*range(32), 99], 2, deadline=4.0), now=0.0)
    scheduler.submit(ask("other", 20, 2, deadline=4.0), now=0.0)
    assert waiting(scheduler) == ["same", "other"]  # 2.5 s of work against 2
    came: list[str] = []
    while len(came) < 2:
        came += step(scheduler)["new"]
    assert came == ["other", "same"]  # 0.1 s against 2


def test_a_later_token_is_due_by_the_target_for_each_token() -> None:
    scheduler = deadline()
    scheduler.submit(ask("slow", 4, 20, deadline=5.0, token_deadline=3.0), now=0.0)
    scheduler.submit(ask("fast", 4, 20, deadline=9.0, token_deadline=0.5), now=0.0)
    for _ in range(3):
        step(scheduler, now=1.0)
    preempt_all(scheduler, now=1.0)
    assert waiting(scheduler) == ["fast", "slow"]  # 9 + 3 * 0.5 against 5 + 3 * 3


def test_without_such_a_target_the_next_token_is_due_at_once() -> None:
    scheduler = deadline()
    scheduler.submit(ask("paced", 4, 20, deadline=5.0, token_deadline=2.0), now=0.0)
    scheduler.submit(ask("plain", 4, 20, deadline=5.1), now=0.0)
    for _ in range(2):
        step(scheduler, now=1.0)
    preempt_all(scheduler, now=1.0)
    assert waiting(scheduler) == ["plain", "paced"]


def test_the_resident_that_can_best_afford_it_gives_way() -> None:
    scheduler = deadline(max_num_batched_tokens=64)
    scheduler.submit(ask("leisurely", 20, 20, deadline=50.0), now=0.0)
    scheduler.submit(ask("urgent", 20, 20, deadline=1.0), now=0.0)
    scheduler.submit(ask("middle", 20, 20, deadline=9.0), now=0.0)
    gone: list[str] = []
    while not gone:
        gone = step(scheduler)["preempted"]
    assert gone == ["leisurely"]


def test_a_resident_with_a_slow_target_can_afford_more_with_every_token() -> None:
    scheduler = deadline(max_num_batched_tokens=64, num_blocks=14)
    scheduler.submit(ask("slow", 18, 20, deadline=1.0, token_deadline=9.0), now=0.0)
    scheduler.submit(ask("plain", 18, 20, deadline=20.0), now=0.0)
    gone: list[str] = []
    while not gone:
        gone = step(scheduler)["preempted"]
    assert gone == ["slow"]


# -- refusal ----------------------------------------------------------------


def blocked(**settings: Any) -> Scheduler:
    """One slot, and somebody in it for a long time."""
    scheduler = deadline(**{"max_num_seqs": 1, "refuse_late": True} | settings)
    scheduler.submit(ask("running", 2, 60), now=0.0)
    step(scheduler)
    return scheduler


def test_one_whose_deadline_passed_in_the_queue_is_refused_and_told_with_the_next_outputs() -> None:
    scheduler = blocked()
    scheduler.submit(ask("late", 2, deadline=5.0), now=0.0)
    step(scheduler, now=5.0)
    assert waiting(scheduler) == ["late"]  # there is no better moment to be there than the last
    plan = scheduler.plan(now=5.1)
    assert plan.finished == ("late",)
    assert state(scheduler, "running")["state"] == "RUNNING"
    outputs = scheduler.commit(plan, answer(plan), now=5.2)
    (end,) = outputs.finished
    assert (end.request_id, end.finish, end.stop_token) == ("late", Finish.TIMEOUT, None)
    assert end.message == "its deadline passed in the queue"
    assert outputs.to_dict()["late"] == {"tokens": [], "finish": "timeout"}
    assert commit(scheduler, scheduler.plan(now=5.3), now=5.4).keys() == {"running"}  # told once
    assert not scheduler.abort("late", now=5.5)


def test_explain_tells_why_it_was_refused() -> None:
    scheduler = blocked()
    scheduler.submit(ask("late", 2, deadline=5.0), now=0.0)
    step(scheduler, now=6.0)
    told = scheduler.explain("late")
    assert "its deadline passed in the queue" in told
    assert "finished: timed out" in told


def test_refusals_are_told_even_if_nobody_else_is_here() -> None:
    scheduler = deadline(refuse_late=True)
    scheduler.submit(ask("late", 2, deadline=5.0), now=0.0)
    plan = scheduler.plan(now=6.0)
    assert len(plan.rows) == 0
    outputs = scheduler.commit(plan, StepResult.of(plan, {}), now=6.0)
    assert outputs.to_dict() == {"late": {"tokens": [], "finish": "timeout"}}
    assert scheduler.idle


def test_nobody_is_refused_unless_asked_for() -> None:
    scheduler = blocked(refuse_late=False)
    scheduler.submit(ask("late", 2, 3, deadline=5.0), now=0.0)
    assert len(finish_all(scheduler, now=100.0)["late"]) == 3


def test_a_parked_one_is_refused_too() -> None:
    scheduler = blocked()
    scheduler.submit(ask("late", 2, deadline=5.0), now=0.0, parked="grammar")
    plan = scheduler.plan(now=6.0)
    assert plan.finished == ("late",)
    assert not scheduler.wake("late", now=6.0)
    assert commit(scheduler, plan, now=6.0)["late"]["finish"] == "timeout"


def test_a_parked_one_keeps_its_due_time() -> None:
    scheduler = deadline()
    scheduler.submit(ask("parked", 2, deadline=5.0), now=0.0, parked="grammar")
    scheduler.submit(ask("other", 2, deadline=3.0), now=4.0)
    scheduler.wake("parked", now=4.5)
    assert waiting(scheduler) == ["parked", "other"]


def test_one_without_a_deadline_is_never_refused() -> None:
    scheduler = blocked(default_deadline_s=1.0)
    scheduler.submit(ask("timeless", 2, 3), now=0.0)
    assert len(finish_all(scheduler, now=100.0)["timeless"]) == 3


def test_one_that_was_admitted_in_time_is_never_refused_not_even_preempted() -> None:
    scheduler = deadline(refuse_late=True)
    scheduler.submit(ask("started", 2, 5, deadline=5.0), now=0.0)
    step(scheduler, now=4.0)
    preempt_all(scheduler, now=50.0)
    assert state(scheduler, "started")["state"] == "PREEMPTED"
    assert len(finish_all(scheduler, now=60.0)["started"]) == 5 - 1


@pytest.mark.parametrize("end", ["abort", "finish"])
def test_one_that_ended_before_is_not_refused_again(end: str) -> None:
    scheduler = deadline(refuse_late=True)
    scheduler.submit(ask("gone", 2, 1, deadline=5.0), now=0.0)
    if end == "abort":
        scheduler.abort("gone", now=1.0)
    else:
        step(scheduler, now=1.0)
    scheduler.submit(ask("gone", 2, 2, deadline=50.0), now=2.0)  # the same id, another request
    told = commit(scheduler, scheduler.plan(now=9.0), now=9.0)
    assert told["gone"]["finish"] is None
    assert state(scheduler, "gone")["state"] == "RUNNING"


def test_ended_requests_are_not_kept_until_their_deadline() -> None:
    scheduler = deadline(refuse_late=True)
    for number in range(1_000):
        scheduler.submit(ask(f"r{number}", 2, 1, deadline=1e9), now=0.0)
        scheduler.abort(f"r{number}", now=0.0)
    policy = scheduler.state.policy
    kept = [held for held in vars(policy).values() if isinstance(held, (list, dict))]
    assert sum(map(len, kept)) <= 200
