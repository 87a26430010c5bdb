"""How requests enter the queue, are parked and woken, and get a slot."""

import pytest

from paceline import RequestError
from tests.sched.groups.support import run
from tests.sched.support import PROMPT, ask, finish_all, preempt, small, state, step


def test_requests_that_were_set_aside_come_back_in_their_order() -> None:
    """Edge case 1: Setting several aside in one step and waking them does not turn them round."""
    scheduler = small(max_num_seqs=1)
    for name in "abcd":
        scheduler.submit(ask(name, 3), 0.0)
    for name in "ab":
        scheduler.park(name, "grammar", 0.0)
    for name in "ab":
        scheduler.wake(name, 0.0)
    assert scheduler.snapshot()["waiting"] == ["a", "b", "c", "d"]


def test_a_family_can_be_parked_and_woken() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 6, n=2), 0.0)
    assert scheduler.park("a", "grammar", 0.0)
    assert step(scheduler)["tokens"] == {}
    assert scheduler.wake("a", 0.0)
    assert set(finish_all(scheduler)) == {"0_a", "1_a", "a"}


def test_the_hit_of_its_first_admission_stays_with_a_request() -> None:
    scheduler = small()
    scheduler.submit(ask("a", PROMPT), 0.0)
    step(scheduler)
    scheduler.submit(ask("b", PROMPT), 0.0)
    step(scheduler)
    scheduler.retry(scheduler.plan(0.0), 0.0)
    step(scheduler)
    assert {name: state(scheduler, name)["cached"] for name in "ab"} == {"a": 0, "b": 12}


def test_arrival_is_the_time_of_submission_unless_the_request_says_otherwise() -> None:
    scheduler = small(policy="priority", max_num_seqs=1)
    scheduler.submit(ask("now", 5), 5.0)
    scheduler.submit(ask("before", 5, arrival=3.0), 6.0)
    assert scheduler.snapshot()["waiting"] == ["before", "now"]


def test_only_the_waiting_can_be_parked() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 5), 0.0)
    assert not scheduler.park("nobody", "grammar", 0.0)
    assert not scheduler.park("a", "", 0.0)
    assert scheduler.park("a", "grammar", 0.0)
    assert not scheduler.park("a", "grammar", 0.0)
    assert scheduler.wake("a", 0.0)
    step(scheduler)
    assert not scheduler.park("a", "grammar", 0.0)
    assert state(scheduler, "a")["state"] == "RUNNING"


def test_only_the_parked_can_be_woken() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 5), 0.0)
    assert not scheduler.wake("a", 0.0)
    assert not scheduler.wake("nobody", 0.0)


def test_the_parked_keep_their_order() -> None:
    scheduler = small(max_num_seqs=1)
    for name in "abcd":
        scheduler.submit(ask(name, 5), 0.0)
    for name in "ba":
        scheduler.park(name, "grammar", 0.0)
    assert scheduler.snapshot()["waiting"] == ["c", "d"]
    for name in "ab":
        scheduler.wake(name, 0.0)
    assert scheduler.snapshot()["waiting"] == ["a", "b", "c", "d"]


def test_a_parked_request_takes_neither_slot_nor_blocks() -> None:
    scheduler = small(max_num_seqs=1)
    scheduler.submit(ask("a", 5), 0.0, parked="grammar")
    assert step(scheduler)["tokens"] == {}
    assert scheduler.snapshot()["free_blocks"] == 16
    assert not scheduler.idle


def test_a_preempted_request_can_be_parked_and_comes_back_to_the_front() -> None:
    scheduler = small(max_num_seqs=1)
    scheduler.submit(ask("a", 5), 0.0)
    scheduler.submit(ask("b", 5), 0.0)
    step(scheduler)
    scheduler.reset_prefix_cache(reset_running_requests=True)
    assert scheduler.park("a", "grammar", 0.0)
    assert step(scheduler)["new"] == ["b"]
    scheduler.wake("a", 0.0)
    scheduler.submit(ask("c", 5), 0.0)
    assert scheduler.snapshot()["waiting"] == ["a", "c"]


def test_the_swapped_count_among_those_who_wait_when_one_comes() -> None:
    scheduler = small(preemption_mode="swap", swap_space=16)
    scheduler.submit(ask("a", 5, max_tokens=9), 0.0)
    step(scheduler)
    preempt(scheduler, "a")
    scheduler.submit(ask("b", 5), 0.0)
    assert "submitted, with 1 request waiting" in scheduler.explain("b")


def test_a_request_continues_after_the_tokens_of_another_engine() -> None:
    scheduler = small()
    scheduler.submit(ask("a", PROMPT, max_tokens=6, generated=((5, 6, 7),)), 0.0)
    scheduler.submit(ask("new", 5), 0.0)
    assert step(scheduler)["tokens"] == {"a": 16, "new": 5}
    assert finish_all(scheduler)["a"] == [9, 9], "and one token of the first step"
    assert "continues after 3 tokens that another engine generated" in scheduler.explain("a")
    assert "continues" not in scheduler.explain("new")


def test_a_request_that_continues_counts_only_its_prompt_as_cached() -> None:
    scheduler = small()
    prompt = ask("a", 5).prompt.tolist()
    scheduler.submit(ask("a", prompt, max_tokens=9), 0.0)
    finish_all(scheduler)
    scheduler.submit(ask("b", prompt, max_tokens=9, generated=((9,) * 7,)), 0.0)
    step(scheduler)
    assert "8 tokens came from the prefix cache" in scheduler.explain("b")
    assert state(scheduler, "b")["cached"] == 5


def test_the_open_sequences_of_a_family_continue() -> None:
    asked = ask("a", 6, n=3, max_tokens=4, generated=((5,), None, (5, 6)))
    ended = run(small(), asked)
    assert set(ended.ends) == {"0_a", "2_a", "a"}
    assert {name: len(tokens) for name, tokens in ended.got.items() if tokens} == {
        "0_a": 3,
        "2_a": 2,
    }


def test_a_request_that_continues_was_accepted_and_is_not_refused() -> None:
    scheduler = small(max_num_queued_reqs=1, max_queued_tokens=8)
    scheduler.submit(ask("a", 5), 0.0)
    scheduler.drain()
    scheduler.submit(ask("b", 5, generated=((),)), 0.0)
    scheduler.submit(ask("c", 5, generated=((7,),)), 0.0)
    assert {*finish_all(scheduler)} == {"a", "b", "c"}


def test_a_request_that_has_ended_elsewhere_cannot_continue() -> None:
    with pytest.raises(RequestError, match=r"it has 64 tokens from another engine, .* at 64"):
        small().submit(ask("a", 60, max_tokens=None, generated=((1, 2, 3, 4),)), 0.0)
