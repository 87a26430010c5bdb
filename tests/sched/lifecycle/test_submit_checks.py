"""What may be queued: requests, prompt tokens, and seconds before the first admission."""

from typing import Any

import pytest

from paceline import (
    Finish,
    PacelineError,
    QueueFull,
    RequestError,
    Scheduler,
    StepError,
    StepResult,
)
from tests.sched.support import ask, small, state, step


def tokens(scheduler: Scheduler) -> int:
    """Prompt tokens that count against `max_queued_tokens`."""
    return scheduler._limits.tokens


def busy(**settings: Any) -> Scheduler:
    """One slot, which is taken by request "first"."""
    scheduler = small(max_num_seqs=1, **settings)
    scheduler.submit(ask("first", 4, max_tokens=40), 0.0)
    step(scheduler)
    return scheduler


def ended(scheduler: Scheduler, now: float) -> dict[str, tuple[Finish, str]]:
    """Requests that end in a step at this time, with their messages."""
    plan = scheduler.plan(now)
    scheduler.check()
    rows = {label: [9] for label in plan.rows.labels}
    outputs = scheduler.commit(plan, StepResult.of(plan, rows), now)
    return {end.request_id: (end.finish, end.message) for end in outputs.finished if end.child < 0}


def test_prompts_that_wait_are_bounded_in_tokens() -> None:
    scheduler = busy(max_queued_tokens=10)
    scheduler.submit(ask("a", 4), 0.0)
    scheduler.submit(ask("b", 6, n=1), 0.0)
    with pytest.raises(QueueFull, match=r"10 tokens .* 1 more .* max_queued_tokens 10"):
        scheduler.submit(ask("c", 1), 0.0)
    scheduler.abort("b", 0.0)
    scheduler.submit(ask("c", 6), 0.0)
    assert tokens(scheduler) == 10
    scheduler.check()


def test_a_prompt_that_waits_alone_may_have_any_length() -> None:
    scheduler = busy(max_queued_tokens=10)
    scheduler.submit(ask("a", 50), 0.0)
    with pytest.raises(QueueFull):
        scheduler.submit(ask("b", 1), 0.0)


def test_tokens_count_until_the_first_admission() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 4, n=3), 0.0)
    scheduler.submit(ask("b", 5), 0.0, parked="grammar")
    assert tokens(scheduler) == 9
    step(scheduler)
    assert tokens(scheduler) == 5
    scheduler.reset_prefix_cache(reset_running_requests=True)
    assert state(scheduler, "a")["state"] == "PREEMPTED"
    assert tokens(scheduler) == 5, "a request that was preempted has started"
    scheduler.check()


def test_a_refused_request_does_not_count() -> None:
    scheduler = small(max_queued_tokens=100)
    with pytest.raises(RequestError, match="max_model_len"):
        scheduler.submit(ask("a", 64), 0.0)
    assert tokens(scheduler) == 0


@pytest.mark.parametrize("cut", ["abort", "deadline", "queue"])
def test_a_request_that_ends_in_the_queue_does_not_count_any_more(cut: str) -> None:
    scheduler = busy(policy="deadline", refuse_late=True, queue_timeout_s=5.0)
    scheduler.submit(ask("a", 4, deadline=1.0 if cut == "deadline" else 60.0), 0.0)
    if cut == "abort":
        scheduler.abort("a", 0.0)
    else:
        assert ended(scheduler, 2.0 if cut == "deadline" else 6.0)["a"][0] is Finish.TIMEOUT
    assert tokens(scheduler) == 0
    scheduler.check()


def test_a_family_counts_once_whatever_becomes_of_its_children() -> None:
    scheduler = small(max_num_seqs=2)
    scheduler.submit(ask("first", 4, max_tokens=8, n=2), 0.0)
    step(scheduler)
    scheduler.submit(ask("f", 4, n=2), 0.0)
    scheduler.abort("f", 0.0, child=0)
    assert tokens(scheduler) == 4
    scheduler.abort("f", 0.0, child=1)
    assert tokens(scheduler) == 0
    scheduler.check()


def test_a_request_that_waits_too_long_ends_with_a_timeout() -> None:
    scheduler = busy(queue_timeout_s=5.0)
    scheduler.submit(ask("a", 4), 1.0)
    scheduler.submit(ask("b", 4), 2.0, parked="grammar")
    scheduler.submit(ask("c", 4), 3.0)
    assert ended(scheduler, 6.0) == {}
    message = "it was not started within queue_timeout_s (5 s)"
    assert ended(scheduler, 7.5) == {"a": (Finish.TIMEOUT, message), "b": (Finish.TIMEOUT, message)}
    assert message in scheduler.explain("a")
    assert scheduler.view.live_ids() == ["first", "c"]


def test_a_paused_scheduler_ends_them_too() -> None:
    scheduler = small(queue_timeout_s=5.0)
    scheduler.pause("all")
    scheduler.submit(ask("a", 4), 0.0)
    assert ended(scheduler, 6.0)["a"][0] is Finish.TIMEOUT


def test_a_request_that_has_started_is_not_ended_however_long_it_waits_again() -> None:
    scheduler = small(queue_timeout_s=5.0)
    scheduler.submit(ask("a", 4), 0.0)
    step(scheduler)
    scheduler.reset_prefix_cache(reset_running_requests=True)
    scheduler.pause("new")
    assert ended(scheduler, 100.0) == {}
    assert scheduler.view.is_live("a")


def test_without_limits_no_request_is_refused_or_ended() -> None:
    scheduler = busy()
    scheduler.submit(ask("a", 50), 0.0)
    scheduler.submit(ask("b", 50), 0.0)
    assert ended(scheduler, 1e9) == {}


def test_the_room_is_what_may_still_be_queued() -> None:
    scheduler = busy(max_num_queued_reqs=3)
    assert scheduler.queue_room == 3
    scheduler.submit(ask("a", 4), 0.0)
    scheduler.submit(ask("b", 4), 0.0, parked="grammar")
    assert scheduler.queue_room == 1
    scheduler.submit(ask("c", 4), 0.0)
    with pytest.raises(QueueFull, match=r"3 requests are already waiting"):
        scheduler.submit(ask("d", 4), 0.0)


def test_names_that_look_like_those_of_children_are_names() -> None:
    scheduler = busy()
    for name in ("x", "0_x"):
        scheduler.submit(ask(name, 4), 0.0)
    scheduler.abort("x", 0.0)
    assert tokens(scheduler) == 4
    scheduler.check()


def test_the_queue_is_bounded_and_says_so() -> None:
    scheduler = small(max_num_queued_reqs=2)
    scheduler.submit(ask("a", 5), 0.0)
    scheduler.submit(ask("b", 5), 0.0, parked="grammar")
    with pytest.raises(QueueFull, match="2 requests are already waiting"):
        scheduler.submit(ask("c", 5), 0.0)
    step(scheduler)  # "a" runs now
    scheduler.submit(ask("c", 5), 0.0)


def test_a_full_queue_is_a_fault_of_the_moment_and_of_the_client() -> None:
    assert issubclass(QueueFull, RequestError)
    assert issubclass(RequestError, PacelineError)
    assert not issubclass(StepError, RequestError)
