"""Which rules end requests that wait too long, and what they say."""

from typing import Any

from paceline import Scheduler
from paceline.core.request import Finish
from paceline.sched import timeouts
from paceline.sched.timeouts import Timeout
from tests.sched.support import ask, small, step


def rules(**settings: Any) -> tuple[Timeout, ...]:
    made = small(**settings)
    return timeouts.load(made.state.policy, made._limits, made.state.live)


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
