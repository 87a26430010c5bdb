"""What a result does to the state, and which results are refused."""

from typing import Any

import numpy as np
import pytest

from paceline import Plan, Scheduler, StepError, StepResult
from paceline.testing.reference import reference
from tests.sched.support import (
    PROMPT,
    Pipeline,
    answer,
    ask,
    commit,
    counters,
    drafting,
    finish_all,
    small,
    state,
    step,
)


def test_a_sampled_token_becomes_known_and_the_row_computed() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 5), 0.0)
    plan = scheduler.plan(0.0)
    assert counters(scheduler, "a") == (5, 5, 0)
    assert commit(scheduler, plan, a=[17]) == {"a": {"tokens": [17], "finish": None}}
    assert counters(scheduler, "a") == (6, 5, 5)


def test_a_part_of_a_prompt_is_computed_and_nothing_becomes_known() -> None:
    scheduler = small(max_num_batched_tokens=8)
    scheduler.submit(ask("a", 12), 0.0)
    assert commit(scheduler, scheduler.plan(0.0)) == {}
    assert counters(scheduler, "a") == (12, 8, 8)


def test_each_row_gets_its_own_token() -> None:
    scheduler = small()
    for name in "abc":
        scheduler.submit(ask(name, 3), 0.0)
    told = commit(scheduler, scheduler.plan(0.0), a=[1], b=[2], c=[3])
    assert {name: one["tokens"] for name, one in told.items()} == {"a": [1], "b": [2], "c": [3]}


def test_several_can_end_with_one_result() -> None:
    scheduler = small()
    for name, most in (("a", 1), ("b", 2), ("c", 1)):
        scheduler.submit(ask(name, 3, max_tokens=most), 0.0)
    plan = scheduler.plan(0.0)
    outputs = scheduler.commit(plan, answer(plan), 0.0)
    assert [end.request_id for end in outputs.finished] == ["a", "c"]
    assert scheduler.plan(0.0).to_dict()["finished"] == ["a", "c"]


def test_results_come_late_but_in_order() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 3, max_tokens=9), 0.0)
    plans = [scheduler.plan(0.0) for _ in range(3)]
    assert [commit(scheduler, plan, a=[n])["a"]["tokens"] for n, plan in enumerate(plans)] == [
        [0],
        [1],
        [2],
    ]
    assert counters(scheduler, "a") == (6, 5, 5)


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_output_is_the_same_at_any_depth_and_no_step_is_wasted(depth: int) -> None:
    scheduler = small(max_num_batched_tokens=8)
    asked = [ask(name, 4 + 3 * n, max_tokens=1 + 4 * n) for n, name in enumerate("abc")]
    for one in asked:
        scheduler.submit(one, 0.0)
    pipeline = Pipeline(scheduler, depth).run()
    for one in asked:
        assert one.max_tokens is not None
        assert pipeline.got[one.id] == reference(one, 50, 64)[0]
        assert pipeline.planned(one.id) == len(one.prompt) + one.max_tokens - 1


@pytest.mark.parametrize("depth", [2, 4])
def test_steps_planned_past_a_stop_yield_nothing(depth: int) -> None:
    scheduler = small()
    one = ask("a", 3, max_tokens=30)
    stop = reference(one, 50, 64)[0][4]
    asked = ask("a", 3, max_tokens=30, stop_token_ids=(stop,))
    scheduler.submit(asked, 0.0)
    pipeline = Pipeline(scheduler, depth).run()
    expected, finish = reference(asked, 50, 64)
    assert (pipeline.got["a"], pipeline.ends["a"]) == (expected, [finish])
    assert scheduler.stats.stale_rows > 0


def test_a_late_result_does_not_reach_the_slots_next_owner() -> None:
    scheduler = small(max_num_seqs=1)
    scheduler.submit(ask("a", 3, max_tokens=9), 0.0)
    late = [scheduler.plan(0.0), scheduler.plan(0.0)]
    scheduler.abort("a", 0.0)
    scheduler.submit(ask("b", 3, max_tokens=9), 0.0)
    plan = scheduler.plan(0.0)
    assert plan.rows.slot.tolist() == late[0].rows.slot.tolist()
    assert [commit(scheduler, one, a=[55]) for one in late] == [{}, {}]
    assert counters(scheduler, "b") == (3, 3, 0)
    assert commit(scheduler, plan, b=[66]) == {"b": {"tokens": [66], "finish": None}}
    assert scheduler.stats.stale_rows == 2


def test_the_result_of_a_request_that_was_preempted_and_came_back_is_still_late() -> None:
    """The same request in the same slot, but of another epoch: it is sampled again."""
    scheduler = small(max_num_seqs=1)
    scheduler.submit(ask("a", 3, max_tokens=9), 0.0)
    first = scheduler.plan(0.0)
    scheduler.reset_prefix_cache(reset_running_requests=True)
    second = scheduler.plan(0.0)
    assert second.rows.slot.tolist() == first.rows.slot.tolist()
    assert commit(scheduler, first, a=[55]) == {}
    assert commit(scheduler, second, a=[55]) == {"a": {"tokens": [55], "finish": None}}


# -- refusals ----------------------------------------------------------------


def mixed() -> tuple[Scheduler, Plan]:
    """A decode with three drafts, a last chunk and a first one: up to 4, 1 and 0 tokens due."""
    scheduler = small(num_speculative_tokens=3, speculation="fixed", long_prefill_token_threshold=8)
    scheduler.submit(ask("drafts", 3, max_tokens=20), 0.0)
    step(scheduler)
    scheduler.submit(ask("prompt", 8), 0.0)
    scheduler.submit(ask("chunk", 20), 0.0)
    plan = scheduler.plan(0.0)
    assert plan.to_dict()["tokens"] == {"drafts": 4, "prompt": 8, "chunk": 8}
    return scheduler, plan


def result(counts: Any, rows: int = 3, width: int = 4) -> StepResult:
    return StepResult(np.full((rows, width), 5, np.int32), np.array(counts, np.int32))


@pytest.mark.parametrize(
    "wrong",
    [
        result([1, 1, 0], rows=2),
        result([1, 1, 0, 0], rows=4),
        result([1, 1]),
        result([1, 1, 0, 0]),
        result([[1], [1], [0]]),
        result(1),
        StepResult(np.full(3, 5, np.int32), np.array([1, 1, 0], np.int32)),
        StepResult(np.full((3, 4, 1), 5, np.int32), np.array([1, 1, 0], np.int32)),
        result([0, 1, 0]),
        result([1, 0, 0]),
        result([5, 1, 0], width=5),
        result([1, 2, 0]),
        result([1, 1, 1]),
        result([1, 1, -1]),
        result([-1, 1, 0]),
        result([3, 1, 0], width=2),
        result([1, 1, 0], width=0),
    ],
    ids=[
        "too few rows",
        "too many rows",
        "too few counts",
        "too many counts",
        "counts in two dimensions",
        "one count for all",
        "ids in one dimension",
        "ids in three dimensions",
        "no token from a decode",
        "no token from a last chunk",
        "more tokens than drafts and one",
        "two tokens without a draft",
        "a token from an unfinished prompt",
        "less than nothing from an unfinished prompt",
        "less than nothing from a decode",
        "more tokens than columns",
        "no column",
    ],
)
def test_a_malformed_result_is_refused_and_changes_nothing(wrong: StepResult) -> None:
    scheduler, plan = mixed()
    before = scheduler.snapshot(), scheduler.stats.to_dict()
    with pytest.raises(StepError, match=f"step {plan.step}"):
        scheduler.commit(plan, wrong, 0.0)
    assert (scheduler.snapshot(), scheduler.stats.to_dict()) == before
    scheduler.check()
    told = commit(scheduler, plan, drafts=[1, 2])
    assert told["drafts"]["tokens"] == [1, 2]
    assert told["prompt"]["tokens"] == [9]
    assert "chunk" not in told


def test_a_refusal_names_the_request_and_what_was_due() -> None:
    scheduler, plan = mixed()
    with pytest.raises(StepError, match=r"'drafts' has 0 tokens; it must have 1 to 4"):
        scheduler.commit(plan, result([0, 1, 0]), 0.0)


def test_tokens_for_a_request_that_has_no_row_are_refused() -> None:
    scheduler, plan = mixed()
    with pytest.raises(StepError, match="stranger"):
        StepResult.of(plan, {"stranger": [1]})
    assert state(scheduler, "drafts")["known"] == 4


def test_a_result_out_of_order_is_refused_and_nothing_is_lost() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 3, max_tokens=3), 0.0)
    first, second = scheduler.plan(0.0), scheduler.plan(0.0)
    before = scheduler.snapshot()
    with pytest.raises(StepError, match="step 2 is not the oldest in flight"):
        scheduler.commit(second, answer(second), 0.0)
    assert scheduler.snapshot() == before
    assert commit(scheduler, first, a=[1])["a"]["tokens"] == [1]
    assert commit(scheduler, second, a=[2])["a"]["tokens"] == [2]
    assert finish_all(scheduler) == {"a": [9]}


def test_a_result_that_comes_twice_is_refused() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 3), 0.0)
    plan = scheduler.plan(0.0)
    commit(scheduler, plan)
    before = scheduler.snapshot()
    with pytest.raises(StepError, match="step 1"):
        scheduler.commit(plan, answer(plan), 0.0)
    assert scheduler.snapshot() == before


def test_a_result_that_comes_twice_is_refused_with_others_in_flight() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 3), 0.0)
    first, second = scheduler.plan(0.0), scheduler.plan(0.0)
    commit(scheduler, first)
    with pytest.raises(StepError, match=r"step 1 is not the oldest in flight: \[2\]"):
        scheduler.commit(first, answer(first), 0.0)
    assert commit(scheduler, second)["a"]["tokens"] == [9]


def test_the_result_of_an_empty_plan_may_come_at_any_time() -> None:
    scheduler = small()
    empty = scheduler.plan(0.0)
    scheduler.submit(ask("a", 3), 0.0)
    plan = scheduler.plan(0.0)
    assert commit(scheduler, empty) == {}
    assert commit(scheduler, plan)["a"]["tokens"] == [9]
    assert commit(scheduler, empty) == {}


def test_output_in_flight_when_its_request_is_preempted_is_dropped_and_sampled_again() -> None:
    """Edge case 7: The client gets each token once, and the same one."""
    scheduler = small()
    asked = ask("a", PROMPT, max_tokens=6)
    scheduler.submit(asked, 0.0)
    pipeline = Pipeline(scheduler, depth=2)
    pipeline.launch()
    pipeline.launch()
    scheduler.reset_prefix_cache(reset_running_requests=True)
    pipeline.land()
    assert pipeline.got == {}
    pipeline.run()
    assert pipeline.got == {"a": reference(asked, 50, 64)[0]}
    assert scheduler.stats.stale_rows == 2


def test_drafts_rejected_after_a_preemption_take_nothing_away() -> None:
    """Edge case 8: The counters of a resumed sequence are its own, not those of the step that was
    lost."""
    scheduler = drafting(3)
    scheduler.submit(ask("a", 5, max_tokens=20), 0.0)
    step(scheduler)
    late = scheduler.plan(0.0)
    scheduler.reset_prefix_cache(reset_running_requests=True)
    assert commit(scheduler, late, a=[1]) == {}
    assert counters(scheduler, "a") == (6, 0, 0)
    again = scheduler.plan(0.0)
    assert counters(scheduler, "a") == (6, 6, 0)
    commit(scheduler, again)
    assert counters(scheduler, "a") == (7, 6, 6)


def test_nor_once_it_runs_again() -> None:
    """Edge case 8: The late result comes when the resumed sequence already has work in flight."""
    scheduler = drafting(3)
    scheduler.submit(ask("a", 5, max_tokens=20), 0.0)
    step(scheduler)
    late = scheduler.plan(0.0)
    scheduler.reset_prefix_cache(reset_running_requests=True)
    again = scheduler.plan(0.0)
    commit(scheduler, late, a=[1])
    assert counters(scheduler, "a") == (6, 6, 0)
    commit(scheduler, again)
    assert counters(scheduler, "a") == (7, 6, 6)


def test_a_reset_with_steps_in_flight_drops_exactly_what_was_in_flight() -> None:
    """Edge case 28: Tokens that were already given stay, the others come again."""
    scheduler = small()
    asked = ask("a", PROMPT, max_tokens=8)
    scheduler.submit(asked, 0.0)
    pipeline = Pipeline(scheduler, depth=3)
    for _ in range(3):
        pipeline.launch()
    pipeline.land()
    assert len(pipeline.got["a"]) == 1
    assert scheduler.reset_prefix_cache(reset_running_requests=True)
    assert counters(scheduler, "a") == (14, 0, 0)
    pipeline.run()
    assert pipeline.got == {"a": reference(asked, 50, 64)[0]}


def test_a_result_in_columns_is_as_good_as_one_by_id() -> None:
    """A runner answers with arrays and never asks for names."""
    scheduler = small()
    for name in "ab":
        scheduler.submit(ask(name, 3), 0.0)
    plan = scheduler.plan(0.0)
    result = StepResult(np.array([[5], [6]], np.int32), np.array([1, 1], np.int32))
    told = scheduler.commit(plan, result, 0.0).to_dict()
    assert {name: one["tokens"] for name, one in told.items()} == {"a": [5], "b": [6]}


def test_counters_of_a_life_catch_up_with_each_other() -> None:
    scheduler = small(max_num_batched_tokens=8)
    scheduler.submit(ask("a", 12, max_tokens=2), 0.0)
    seen: list[tuple[int, int, int]] = []
    for _ in range(2):
        plan = scheduler.plan(0.0)
        seen.append(counters(scheduler, "a"))
        commit(scheduler, plan)
        seen.append(counters(scheduler, "a"))
    assert seen == [(12, 8, 0), (12, 8, 8), (12, 12, 8), (13, 12, 12)]
    assert np.all(np.diff([one[2] for one in seen]) >= 0)
