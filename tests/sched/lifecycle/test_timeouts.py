"""Which rules end requests that wait too long, and what they say."""

from typing import Any

from paceline import Finish, Scheduler
from paceline.sched.lifecycle import timeouts
from paceline.sched.lifecycle.timeouts import QueueLimits, Timeout
from tests.sched.support import answer, ask, commit, small, state, step


def rules(**settings: Any) -> tuple[Timeout, ...]:
    made = small(**settings)
    limits = QueueLimits(made.config.queue, made.view)
    return timeouts.load(made.state.policy, limits, made.state.live)


def one_late(**settings: Any) -> Scheduler:
    """One slot, taken by "first", and "late" behind it, which is due at 1 s."""
    scheduler = small(max_num_seqs=1, policy="deadline", **settings)
    scheduler.submit(ask("first", 4, max_tokens=40), 0.0)
    step(scheduler)
    scheduler.submit(ask("late", 4, deadline=1.0), 0.0)
    return scheduler


def test_most_settings_have_no_rule_so_that_a_step_asks_none() -> None:
    assert rules() == ()
    assert rules(policy="fair") == ()
    assert len(rules(policy="deadline")) == 1
    assert len(rules(queue_timeout_s=5.0)) == 1
    assert len(rules(policy="deadline", queue_timeout_s=5.0)) == 2


def test_the_policy_comes_first_and_each_rule_has_its_message() -> None:
    for refuse_late, message in (
        (True, "its deadline passed in the queue"),
        (False, "it was not started within queue_timeout_s (2 s)"),
    ):
        scheduler = one_late(refuse_late=refuse_late, queue_timeout_s=2.0)
        plan = scheduler.plan(3.0)
        scheduler.check()
        assert plan.finished == ("late",)
        ended = scheduler.fail(plan, 3.0).finished
        assert [(end.finish, end.message) for end in ended if end.request_id == "late"] == [
            (Finish.TIMEOUT, message)
        ]


def test_a_request_that_came_later_ends_later() -> None:
    scheduler = one_late(queue_timeout_s=2.0)
    scheduler.submit(ask("next", 4), 1.5)
    assert scheduler.plan(2.5).finished == ("late",)
    assert scheduler.plan(3.6).finished == ("next",)


def test_a_family_whose_deadline_passed_in_the_queue_ends_once_for_each() -> None:
    scheduler = small(policy="deadline", refuse_late=True)
    scheduler.submit(ask("a", 3, n=2, deadline=1.0), 0.0)
    plan = scheduler.plan(5.0)
    ends = scheduler.commit(plan, answer(plan), 5.0).finished
    assert [(end.child, end.finish) for end in ends] == [
        (0, Finish.TIMEOUT),
        (1, Finish.TIMEOUT),
        (-1, Finish.TIMEOUT),
    ]


def test_a_request_whose_deadline_passed_in_the_queue_ends_with_an_error_once() -> None:
    scheduler = small(max_num_seqs=1, policy="deadline", refuse_late=True)
    scheduler.submit(ask("a", 5, max_tokens=9), 0.0)
    step(scheduler, 0.0)
    scheduler.submit(ask("late", 5, deadline=2.0), 0.0)
    step(scheduler, 2.0)
    assert state(scheduler, "late")["state"] == "WAITING"
    plan = scheduler.plan(2.5)
    assert plan.to_dict()["finished"] == ["late"]
    outputs = scheduler.commit(plan, answer(plan), 2.5)
    (end,) = outputs.finished
    assert (end.request_id, end.finish) == ("late", Finish.TIMEOUT)
    assert "deadline" in end.message
    assert outputs.to_dict()["late"] == {"tokens": [], "finish": "timeout"}
    assert "late" not in commit(scheduler, scheduler.plan(3.0), 3.0)
