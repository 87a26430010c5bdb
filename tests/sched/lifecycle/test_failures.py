"""Rows and steps that fail: which requests end, which are computed again."""

from dataclasses import replace
from typing import Any

import pytest

from paceline import Finish, Scheduler, StepError, StepResult
from paceline.core.plan import Failed, Outputs, Plan
from paceline.testing.reference import reference
from tests.sched.support import (
    DEPTHS,
    PROMPT,
    Pipeline,
    answer,
    ask,
    commit,
    findable,
    finish_all,
    preempt,
    small,
    state,
    step,
)

REASON = "no numbers"


def fail(scheduler: Scheduler, plan: Plan, *labels: str) -> Outputs:
    """The answer to a plan, of which the rows of these labels failed."""
    good = answer(plan)
    lost = [plan.rows.labels.index(label) for label in labels]
    count = good.count.copy()
    count[lost] = 0
    failed = tuple(Failed(row, REASON) for row in lost)
    outputs = scheduler.commit(plan, StepResult(good.ids, count, failed=failed), now=0.0)
    scheduler.check()
    return outputs


def running(*names: str, **settings: Any) -> Scheduler:
    scheduler = small(**settings)
    for name in names:
        scheduler.submit(ask(name, 5, max_tokens=6), 0.0)
    return scheduler


@pytest.mark.parametrize("before", [0, 1, 3])
def test_it_ends_alone_with_its_reason(before: int) -> None:
    scheduler = running(*"abc")
    for _ in range(before):
        step(scheduler)
    outputs = fail(scheduler, scheduler.plan(0.0), "b")
    (end,) = outputs.finished
    assert (end.request_id, end.finish.value, end.message) == ("b", "error", REASON)
    told = outputs.to_dict()
    assert told["b"] == {"tokens": [], "finish": "error"}
    assert [told[name]["tokens"] for name in "ac"] == [[9], [9]]
    assert f"ended ({REASON})" in scheduler.explain("b")
    assert scheduler.stats.failed_rows == 1
    assert step(scheduler)["finished"] == ["b"]
    assert finish_all(scheduler).keys() == {"a", "c"}


def test_later_results_of_it_are_stale() -> None:
    scheduler = running("a", "b")
    plans = [scheduler.plan(0.0) for _ in range(3)]
    fail(scheduler, plans[0], "a")
    for plan in plans[1:]:
        assert fail(scheduler, plan, "a").to_dict().keys() == {"b"}
    assert scheduler.stats.failed_rows == 1
    assert len(finish_all(scheduler)["b"]) == 3


@pytest.mark.parametrize(
    "family", [{"n": 3}, {"n": 2, "best_of": 3}, {"beam_width": 3}], ids=["n", "best_of", "beams"]
)
def test_a_family_ends_with_one_of_its_rows(family: dict[str, Any]) -> None:
    scheduler = small()
    scheduler.submit(ask("a", 5, **family), 0.0)
    scheduler.submit(ask("b", 5), 0.0)
    pipeline = Pipeline(scheduler, 2)
    pipeline.launch()
    pipeline.runner.spoiled = {"1_a"}
    pipeline.run()
    assert pipeline.ends["a"] == ["error"]
    assert pipeline.ends["b"] == ["length"]
    assert scheduler.usage == 0


@DEPTHS
@pytest.mark.parametrize("moves", range(4))
def test_one_with_the_same_prompt_is_computed_whenever_it_arrives(depth: int, moves: int) -> None:
    """Beside the row that fails, while its result is in flight, or later in its slot."""
    scheduler = small()
    scheduler.submit(ask("a", PROMPT), 0.0)
    pipeline = Pipeline(scheduler, depth)
    pipeline.runner.spoiled = {"a"}
    for _ in range(moves):
        pipeline.move()
    late = ask("b", PROMPT)
    scheduler.submit(late, 0.0)
    pipeline.run()
    assert pipeline.ends == {"a": ["error"], "b": ["length"]}
    assert pipeline.got["b"] == reference(late, 50, 64)[0]


def test_a_row_with_drafts_fails_as_any_other() -> None:
    scheduler = small(num_speculative_tokens=2, speculation="fixed")
    for name in "ab":
        scheduler.submit(ask(name, 5, max_tokens=8), 0.0)
    step(scheduler)
    plan = scheduler.plan(0.0)
    assert plan.rows.drafts.any()
    assert fail(scheduler, plan, "a").to_dict()["a"]["finish"] == "error"
    scheduler.check()


def test_nothing_that_it_has_not_sampled_from_is_found() -> None:
    scheduler = small(max_num_batched_tokens=8)
    scheduler.submit(ask("a", range(20), max_tokens=9), 0.0)
    step(scheduler)
    step(scheduler)  # neither of these samples
    assert findable(scheduler, range(12)) == 12
    fail(scheduler, scheduler.plan(0.0), "a")
    assert findable(scheduler, range(20)) == 0


def test_what_nobody_had_looked_for_is_not_found_either() -> None:
    scheduler = small(max_num_batched_tokens=8)
    scheduler.submit(ask("a", range(20), max_tokens=9), 0.0)
    step(scheduler)
    step(scheduler)
    fail(scheduler, scheduler.plan(0.0), "a")
    assert findable(scheduler, range(20)) == 0


def test_what_it_has_sampled_from_is_found() -> None:
    scheduler = small()
    scheduler.submit(ask("a", range(9), max_tokens=9), 0.0)
    step(scheduler)
    fail(scheduler, scheduler.plan(0.0), "a")
    assert findable(scheduler, range(9)) == 8


def test_what_a_step_in_flight_was_to_fill_is_not_found_when_its_owner_has_gone() -> None:
    scheduler = small()
    scheduler.submit(ask("a", range(9), max_tokens=9), 0.0)
    plan = scheduler.plan(0.0)
    scheduler.abort("a", 0.0)
    assert findable(scheduler, range(9)) == 8
    assert fail(scheduler, plan, "a").finished == ()
    assert findable(scheduler, range(9)) == 0


def test_who_reads_what_it_computes_begins_anew() -> None:
    scheduler = small(max_num_batched_tokens=16)
    scheduler.submit(ask("a", range(9), max_tokens=9), 0.0)
    scheduler.submit(ask("b", [*range(8), *range(50, 70)], max_tokens=2), 0.0)
    plan = scheduler.plan(0.0)
    assert plan.to_dict()["tokens"] == {"a": 9, "b": 7}  # of which 8 more are those of a
    assert fail(scheduler, plan, "a").to_dict().keys() == {"a"}
    assert "failed on the same prefix" in scheduler.explain("b")
    again = scheduler.plan(0.0)
    assert again.to_dict()["resumed"] == ["b"]
    assert again.admitted[0].computed == 0
    commit(scheduler, again)
    assert finish_all(scheduler)["b"] == [9, 9]


def test_who_fails_on_what_an_earlier_one_computed_gets_another_chance() -> None:
    scheduler = small()
    for name in "ab":
        scheduler.submit(ask(name, [*range(8), *name.encode()], max_tokens=2), 0.0)
    assert fail(scheduler, scheduler.plan(0.0), "a", "b").to_dict().keys() == {"a"}
    assert finish_all(scheduler)["b"] == [9, 9]


def test_the_host_forgets_it_too() -> None:
    scheduler = small(preemption_mode="swap", swap_space=16, max_num_batched_tokens=8)
    scheduler.submit(ask("a", range(20), max_tokens=9), 0.0)
    step(scheduler)
    at = scheduler.state
    preempt(scheduler, "a")
    assert len(at.swapped) == 1
    host = at.cache.host
    while scheduler.unfinished:
        plan = scheduler.plan(0.0)
        fail(scheduler, plan, *(["a"] if plan.rows.samples.any() else []))
    assert host.free == host.size
    assert host.cached == 0
    assert findable(scheduler, range(20)) == 0


def test_a_failure_of_no_row_and_tokens_of_a_failed_one_are_refused() -> None:
    scheduler = running("a")
    plan = scheduler.plan(0.0)
    with pytest.raises(StepError, match="1 rows"):
        scheduler.commit(plan, bad(plan, 1, 0), 0.0)
    with pytest.raises(StepError, match="it must have 0"):
        scheduler.commit(plan, bad(plan, 0, 1), 0.0)
    with pytest.raises(StepError, match="no row"):
        StepResult.of(plan, {}, failed={"b": REASON})
    named = StepResult.of(plan, {}, failed={"a": REASON})
    assert named.failed == (Failed(0, REASON),)
    assert scheduler.commit(plan, named, 0.0).to_dict()["a"]["finish"] == "error"


def bad(plan: Plan, row: int, count: int) -> StepResult:
    good = answer(plan)
    return StepResult(good.ids, good.count * 0 + count, failed=(Failed(row, REASON),))


SHARED = list(range(8))


def two_on_one_prefix(**settings: Any) -> Scheduler:
    """`b` begins on what `a` computes in the same step."""
    scheduler = small(**settings)
    for name, last, most in (("a", 50, 6), ("b", 51, 3)):
        scheduler.submit(ask(name, [*SHARED, last], max_tokens=most), 0.0)
    return scheduler


def test_a_row_that_begins_anew_is_in_no_steady_step() -> None:
    scheduler = two_on_one_prefix()
    first = scheduler.plan(0.0)
    scheduler.abort("a", 0.0)
    second = scheduler.plan(0.0)
    assert not fail(scheduler, first, "a", "b").finished
    assert scheduler.snapshot()["waiting"] == ["b"]
    assert commit(scheduler, second) == {}
    assert len(finish_all(scheduler)["b"]) == 3


def test_whoever_has_the_slot_of_one_that_is_gone_makes_no_difference() -> None:
    scheduler = two_on_one_prefix(max_num_seqs=2)
    first = scheduler.plan(0.0)
    scheduler.abort("a", 0.0)
    scheduler.submit(ask("c", [70, 71, 72], max_tokens=2), 0.0)
    second = scheduler.plan(0.0)
    assert [new.request.id for new in second.admitted] == ["c"]
    assert not fail(scheduler, first, "a", "b").finished, "b has failed on the blocks of a"
    commit(scheduler, second)
    assert finish_all(scheduler).keys() >= {"b", "c"}


def test_who_has_taken_a_doubtful_block_since_goes_on() -> None:
    scheduler = small(num_blocks=6, free_order="lru")
    scheduler.submit(ask("a", list(range(16)), max_tokens=2), 0.0)
    first = scheduler.plan(0.0)
    scheduler.abort("a", 0.0)
    scheduler.submit(ask("z", list(range(30, 50)), max_tokens=2), 0.0)
    second = scheduler.plan(0.0)
    held = set(first.admitted[0].blocks)
    assert held & set(second.admitted[0].blocks), "it has nothing of the first"
    fail(scheduler, first, "a")
    assert scheduler.snapshot()["running"] == ["z"]
    assert scheduler.stats.preemptions == 0


LONG = range(60)


def pieces(**settings: Any) -> Scheduler:
    """A prompt that is computed in pieces, of which the first one has been."""
    given = {"max_num_batched_tokens": 16, "long_prefill_token_threshold": 8, "num_blocks": 48}
    scheduler = small(**given | settings)
    scheduler.submit(ask("a", LONG, max_tokens=2), 0.0)
    assert step(scheduler)["tokens"] == {"a": 8}
    return scheduler


def test_who_samples_in_the_same_step_from_what_it_shares_goes_on() -> None:
    scheduler = small()
    scheduler.submit(ask("a", range(9)), 0.0)
    scheduler.submit(ask("b", [*range(8), 99]), 0.0)
    plan = scheduler.plan(0.0)
    assert plan.to_dict()["tokens"] == {"a": 9, "b": 1}
    assert fail(scheduler, plan, "a").to_dict()["b"] == {"tokens": [9], "finish": None}
    assert state(scheduler, "b")["preemptions"] == 0


def test_who_sampled_before_from_what_it_shares_goes_on_though_it_has_no_row() -> None:
    scheduler = pieces(discipline="prefill_first", max_wait=1000.0)
    scheduler.submit(ask("b", [*range(8), 99]), 0.0)
    assert step(scheduler)["tokens"] == {"a": 8, "b": 1}
    plan = scheduler.plan(0.0)
    assert plan.to_dict()["tokens"] == {"a": 8}
    fail(scheduler, plan, "a")
    assert state(scheduler, "b")["preemptions"] == 0


def test_who_sampled_before_from_what_it_shares_fails_on_its_own_account() -> None:
    scheduler = pieces()
    scheduler.submit(ask("b", [*range(8), 99]), 0.0)
    assert step(scheduler)["tokens"] == {"a": 8, "b": 1}
    outputs = fail(scheduler, scheduler.plan(0.0), "a", "b")
    assert [end.request_id for end in outputs.finished] == ["a", "b"]


def away(scheduler: Scheduler) -> None:
    """Another one, which builds on the first piece and has sampled nothing, goes to the host."""
    scheduler.submit(ask("b", [*range(8), *range(100, 132)]), 0.0)
    assert step(scheduler)["tokens"] == {"a": 8, "b": 8}
    preempt(scheduler, "b")
    assert scheduler.snapshot()["swapped"] == ["b"]


def test_who_took_what_it_shares_to_the_host_begins_anew() -> None:
    """And the host forgets also what was computed behind it."""
    scheduler = pieces(preemption_mode="swap", swap_space=16)
    away(scheduler)
    fail(scheduler, scheduler.plan(0.0), "a")
    told = scheduler.snapshot()
    assert (told["swapped"], told["waiting"]) == ([], ["b"])
    assert "failed on the same prefix" in scheduler.explain("b")
    assert scheduler.state.cache.host.cached == 0


def test_who_brought_what_it_shares_back_from_the_host_begins_anew() -> None:
    scheduler = pieces(preemption_mode="swap", swap_space=16)
    away(scheduler)
    commit(scheduler, scheduler.plan(0.0))
    plan = scheduler.plan(0.0)
    assert scheduler.snapshot()["running"] == ["a", "b"]
    assert not plan.rows.samples.any()
    fail(scheduler, plan, "a")
    assert scheduler.snapshot()["waiting"] == ["b"]
    assert scheduler.state.cache.host.cached == 0


def test_who_computes_the_same_in_the_same_blocks_later_goes_on() -> None:
    """What the first one had in flight fails again when another has its blocks, and its keys."""
    scheduler = small(max_num_seqs=1, max_num_batched_tokens=8)
    for name in "abc":
        scheduler.submit(ask(name, range(40), max_tokens=1), 0.0)
    first, second = scheduler.plan(0.0), scheduler.plan(0.0)
    fail(scheduler, first, "a")
    again = [scheduler.plan(0.0) for _ in range(3)]
    assert [plan.to_dict()["tokens"] for plan in again] == [{"b": 8}] * 3
    fail(scheduler, second, "a")
    assert state(scheduler, "b")["preemptions"] == 0


def test_a_token_of_a_failed_row_is_refused_in_a_steady_step_too() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 3, max_tokens=9), 0.0)
    for _ in range(3):
        step(scheduler)
    plan = scheduler.plan(0.0)
    with pytest.raises(StepError, match="has 1 tokens; it must have 0"):
        scheduler.commit(plan, replace(answer(plan), failed=(Failed(0, "lost"),)), 0.0)


def test_a_row_that_failed_has_no_negative_number() -> None:
    scheduler = small()
    for name in "ab":
        scheduler.submit(ask(name, 3), 0.0)
    plan = scheduler.plan(0.0)
    good = answer(plan)
    count = good.count.copy()
    count[-1] = 0
    with pytest.raises(StepError, match="of them \\[-1\\] failed"):
        scheduler.commit(plan, StepResult(good.ids, count, failed=(Failed(-1, "lost"),)), 0.0)


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
