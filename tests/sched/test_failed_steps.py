"""Steps that fail or whose results are lost: `fail` and `retry`."""

import pytest

from paceline import Finish, StepError
from paceline.testing.reference import reference
from tests.sched.support import (
    PROMPT,
    Pipeline,
    answer,
    ask,
    commit,
    findable,
    finish_all,
    small,
    state,
    step,
)


def test_a_failed_step_ends_those_in_it_with_an_error_once() -> None:
    scheduler = small(max_num_seqs=2)
    for name in "abc":
        scheduler.submit(ask(name, 5), 0.0)
    plan = scheduler.plan(0.0)
    ends = scheduler.fail(plan, 0.0, "the device is on fire").finished
    assert [(end.request_id, end.finish, end.message) for end in ends] == [
        ("a", Finish.ERROR, "the device is on fire"),
        ("b", Finish.ERROR, "the device is on fire"),
    ]
    scheduler.check()
    assert scheduler.fail(plan, 0.0).finished == ()
    assert scheduler.commit(plan, answer(plan), 0.0).to_dict() == {}
    assert scheduler.snapshot()["free_blocks"] == 16
    assert scheduler.plan(0.0).to_dict()["finished"] == ["a", "b"]


def test_those_who_were_not_in_it_go_on() -> None:
    scheduler = small(max_num_seqs=1)
    for name in "ab":
        scheduler.submit(ask(name, 5, max_tokens=2), 0.0)
    scheduler.fail(scheduler.plan(0.0), 0.0)
    assert finish_all(scheduler) == {"b": [9, 9]}


def test_a_failed_step_takes_those_behind_it_along() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 5, max_tokens=9), 0.0)
    first = scheduler.plan(0.0)
    scheduler.submit(ask("b", 5, max_tokens=9), 0.0)
    second = scheduler.plan(0.0)
    ends = scheduler.fail(first, 0.0).to_dict()
    assert ends == {name: {"tokens": [], "finish": "error"} for name in "ab"}
    assert scheduler.commit(second, answer(second), 0.0).to_dict() == {}
    assert scheduler.fail(second, 0.0).to_dict() == {}
    assert scheduler.idle


def test_no_block_is_findable_that_a_failed_step_was_to_compute() -> None:
    scheduler = small()
    for name in "ab":
        scheduler.submit(ask(name, PROMPT), 0.0)
    plan = scheduler.plan(0.0)
    assert findable(scheduler, PROMPT) == 12
    scheduler.fail(plan, 0.0)
    assert findable(scheduler, PROMPT) == 0


def test_what_earlier_steps_computed_is_still_there() -> None:
    scheduler = small(max_num_batched_tokens=8)
    scheduler.submit(ask("a", PROMPT), 0.0)
    step(scheduler)
    scheduler.fail(scheduler.plan(0.0), 0.0)
    assert findable(scheduler, PROMPT) == 8


def test_a_block_of_a_request_aborted_in_a_step_that_fails_is_forgotten_too() -> None:
    scheduler = small()
    for name in "ab":
        scheduler.submit(ask(name, 8 if name == "b" else PROMPT), 0.0)
    plan = scheduler.plan(0.0)
    scheduler.abort("a", 0.0)
    scheduler.fail(plan, 0.0)
    assert findable(scheduler, PROMPT) == 0
    scheduler.check()


def test_a_step_that_is_not_in_flight_cannot_fail() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 5), 0.0)
    plan = scheduler.plan(0.0)
    commit(scheduler, plan)
    for give_up in (scheduler.fail, scheduler.retry):
        with pytest.raises(StepError, match="step 1 is not in flight"):
            give_up(plan, 0.0)
    assert state(scheduler, "a")["state"] == "RUNNING"


def test_a_lost_step_is_computed_again_with_the_same_tokens() -> None:
    scheduler = small()
    asked = [ask(name, PROMPT, max_tokens=9, seed=seed) for seed, name in enumerate("abc")]
    for one in asked:
        scheduler.submit(one, 0.0)
    pipeline = Pipeline(scheduler, depth=2)
    pipeline.launch()
    pipeline.launch()
    pipeline.land()
    lost = pipeline.launch()
    pipeline.flight.clear()
    scheduler.retry(pipeline.plans[1], 0.0)
    scheduler.retry(lost, 0.0)  # has gone with the first
    scheduler.check()
    assert scheduler.snapshot()["waiting"] == ["a", "b", "c"]
    pipeline.run()
    assert pipeline.got == {one.id: reference(one, 50, 64)[0] for one in asked}
    assert pipeline.ends == {one.id: ["length"] for one in asked}


def test_a_lost_first_step_leaves_nothing_to_find() -> None:
    scheduler = small()
    scheduler.submit(ask("a", PROMPT), 0.0)
    scheduler.retry(scheduler.plan(0.0), 0.0)
    assert findable(scheduler, PROMPT) == 0
    plan = step(scheduler)
    assert (plan["preempted"], plan["resumed"], plan["tokens"]) == (["a"], ["a"], {"a": 13})


def test_the_result_of_a_lost_step_may_still_come_and_is_ignored() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 5), 0.0)
    lost = scheduler.plan(0.0)
    scheduler.retry(lost, 0.0)
    plan = scheduler.plan(0.0)
    assert scheduler.commit(lost, answer(lost), 0.0).to_dict() == {}
    assert commit(scheduler, plan, a=[5]) == {"a": {"tokens": [5], "finish": None}}


def test_a_lost_step_leaves_the_seals_of_slots_that_it_has_no_work_of() -> None:
    """Their blocks were sealed while the step was the latest, and computed by an earlier one."""
    for in_flight, is_kept in (([], True), ([0], False)):
        scheduler = small()
        scheduler.submit(ask("a", PROMPT), 0.0)
        scheduler.plan(0.0)
        scheduler.submit(ask("b", PROMPT), 0.0)
        scheduler.plan(0.0)  # finds and seals what `a` computes
        cache = scheduler.state.cache
        key = scheduler.state.table.sequence(0).keys[0]
        assert cache.pool.has(key)
        cache.index.retract_in_flight(in_flight)
        assert cache.pool.has(key) == is_kept
