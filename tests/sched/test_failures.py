"""A row that comes to nothing ends its request, leaves nothing to be found, and touches nobody."""

from typing import Any

import pytest

from paceline import Scheduler, StepError, StepResult
from paceline.core.plan import Failed, Outputs, Plan
from tests.sched.support import Pipeline, answer, ask, commit, findable, finish_all, small, step

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
    at = scheduler.residency
    at.preempt(at.live["a"].slot, "a test")
    assert len(at.swapped) == 1
    host = at.swapping.tier.pool
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
    with pytest.raises(StepError, match="between 0 and 0"):
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
