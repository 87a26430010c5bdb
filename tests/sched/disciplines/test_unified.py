"""Who computes how much in a step: residents first, then the waiting, within every limit."""

from typing import Any

import pytest

from paceline import Scheduler
from paceline.testing.reference import reference
from tests.sched.support import (
    Pipeline,
    ask,
    commit,
    crowded,
    findable,
    finish_all,
    gate,
    small,
    state,
    step,
    tokens_of_steps,
)

# -- the budget --------------------------------------------------------------


def test_a_prompt_that_fits_is_computed_in_one_step_and_samples() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 5, max_tokens=3), 0.0)
    assert tokens_of_steps(scheduler, 4) == [{"a": 5}, {"a": 1}, {"a": 1}, {}]


def test_a_longer_one_takes_what_is_left_of_the_budget_step_by_step() -> None:
    scheduler = small(max_num_batched_tokens=8)
    scheduler.submit(ask("a", 20, max_tokens=2), 0.0)
    plans = [scheduler.plan(0.0) for _ in range(4)]
    assert [plan.total for plan in plans] == [8, 8, 4, 1]
    assert [bool(plan.rows.samples[0]) for plan in plans] == [False, False, True, True]
    assert [plan.start.tolist() for plan in plans] == [[0], [8], [16], [20]]


def test_a_part_of_a_prompt_yields_no_token() -> None:
    scheduler = small(max_num_batched_tokens=8)
    scheduler.submit(ask("a", 12), 0.0)
    assert commit(scheduler, scheduler.plan(0.0)) == {}
    assert commit(scheduler, scheduler.plan(0.0)) == {"a": {"tokens": [9], "finish": None}}


def test_decodes_and_prompts_share_a_step() -> None:
    scheduler = small(max_num_batched_tokens=8)
    scheduler.submit(ask("a", 5, max_tokens=9), 0.0)
    scheduler.submit(ask("b", 12, max_tokens=9), 0.0)
    assert tokens_of_steps(scheduler, 4) == [
        {"a": 5, "b": 3},
        {"a": 1, "b": 7},
        {"a": 1, "b": 2},
        {"a": 1, "b": 1},
    ]


def test_residents_come_first_in_the_order_of_admission() -> None:
    scheduler = small(max_num_batched_tokens=8)
    for name in "abc":
        scheduler.submit(ask(name, 6, max_tokens=9), 0.0)
    found = tokens_of_steps(scheduler, 4)
    assert found == [
        {"a": 6, "b": 2},
        {"a": 1, "b": 4, "c": 3},
        {"a": 1, "b": 1, "c": 3},
        {"a": 1, "b": 1, "c": 1},
    ]
    assert list(found[1]) == ["a", "b", "c"]


def test_a_spent_budget_lets_nobody_in() -> None:
    scheduler = small(max_num_batched_tokens=8)
    scheduler.submit(ask("a", 8), 0.0)
    scheduler.submit(ask("b", 3), 0.0)
    assert step(scheduler)["new"] == ["a"]
    assert gate(scheduler) == ("budget", "b", 3)


def test_cached_tokens_are_free() -> None:
    """Nine tokens found and one to compute cost one of the budget."""
    scheduler = small(max_num_batched_tokens=10, max_num_seqs=3)
    scheduler.submit(ask("a", range(9), max_tokens=9), 0.0)
    step(scheduler)
    scheduler.submit(ask("b", [*range(8), 50], max_tokens=9), 0.0)
    scheduler.submit(ask("c", 8, max_tokens=9), 0.0)
    assert step(scheduler)["tokens"] == {"a": 1, "b": 1, "c": 8}


def test_no_more_residents_than_slots() -> None:
    scheduler = small(max_num_seqs=2)
    for name in "abc":
        scheduler.submit(ask(name, 3, max_tokens=2), 0.0)
    assert step(scheduler)["new"] == ["a", "b"]
    assert gate(scheduler) == ("seqs", "c", 1)
    assert step(scheduler)["new"] == []
    assert step(scheduler)["new"] == ["c"]


@pytest.mark.parametrize("max_tokens", [1, 2, 5])
def test_nobody_computes_a_position_whose_sample_is_not_wanted(max_tokens: int) -> None:
    scheduler = small()
    scheduler.submit(ask("a", 5, max_tokens=max_tokens), 0.0)
    total = sum(plan.get("a", 0) for plan in tokens_of_steps(scheduler, 9))
    assert total == 5 + max_tokens - 1


def test_the_model_length_is_never_passed() -> None:
    scheduler = small(max_model_len=8)
    scheduler.submit(ask("a", 5, max_tokens=None), 0.0)
    assert tokens_of_steps(scheduler, 4) == [{"a": 5}, {"a": 1}, {"a": 1}, {}]


# -- chunks ------------------------------------------------------------------


def test_a_threshold_cuts_residents_and_arrivals_alike_and_before_the_budget() -> None:
    scheduler = small(max_num_batched_tokens=10, long_prefill_token_threshold=4)
    for name in "abc":
        scheduler.submit(ask(name, 8, max_tokens=9), 0.0)
    assert tokens_of_steps(scheduler, 3) == [
        {"a": 4, "b": 4, "c": 2},
        {"a": 4, "b": 4, "c": 2},
        {"a": 1, "b": 1, "c": 4},
    ]


def test_without_chunks_a_prompt_that_does_not_fit_stops_admission() -> None:
    """Even if a shorter one behind it would fit."""
    scheduler = small(enable_chunked_prefill=False, max_num_batched_tokens=16, max_model_len=16)
    scheduler.submit(ask("a", 10), 0.0)
    scheduler.submit(ask("b", 10), 0.0)
    scheduler.submit(ask("c", 2), 0.0)
    assert step(scheduler)["tokens"] == {"a": 10}
    assert gate(scheduler) == ("budget", "b", 4)
    assert step(scheduler)["tokens"] == {"a": 1, "b": 10, "c": 2}


def test_without_chunks_a_prompt_that_just_fits_gets_in() -> None:
    scheduler = small(enable_chunked_prefill=False, max_num_batched_tokens=16, max_model_len=16)
    scheduler.submit(ask("a", 10), 0.0)
    scheduler.submit(ask("b", 6), 0.0)
    assert step(scheduler)["tokens"] == {"a": 10, "b": 6}


def test_without_chunks_only_the_uncached_part_has_to_fit() -> None:
    scheduler = small(enable_chunked_prefill=False, max_num_batched_tokens=16, max_model_len=16)
    scheduler.submit(ask("a", range(12)), 0.0)
    scheduler.submit(ask("b", [*range(8), 50, 51]), 0.0)
    assert step(scheduler)["tokens"] == {"a": 12, "b": 2}


# -- memory ------------------------------------------------------------------


def test_admission_reserves_the_whole_prompt() -> None:
    scheduler = small(max_num_batched_tokens=8)
    scheduler.submit(ask("a", 20), 0.0)
    scheduler.plan(0.0)
    assert len(state(scheduler, "a")["blocks"][0]) == 5


def test_or_only_the_first_chunk_of_it() -> None:
    scheduler = small(max_num_batched_tokens=8, reserve_full_prompt=False)
    scheduler.submit(ask("a", 20), 0.0)
    scheduler.plan(0.0)
    assert len(state(scheduler, "a")["blocks"][0]) == 2


@pytest.mark.parametrize(("reserve", "new"), [(True, []), (False, ["b"])])
def test_a_prompt_that_would_not_fit_in_the_end_waits_if_it_is_reserved(
    reserve: bool, new: list[str]
) -> None:
    scheduler = small(num_blocks=6, max_num_batched_tokens=8, reserve_full_prompt=reserve)
    scheduler.submit(ask("a", 8, max_tokens=4), 0.0)
    scheduler.submit(ask("b", 20), 0.0)
    step(scheduler)
    plan = step(scheduler)  # "a" has 3 blocks now; "b" would take 2, but 5 in the end
    assert plan["new"] == new
    assert plan["tokens"].get("b", 0) == (7 if new else 0)


def test_a_request_that_lacks_blocks_waits_and_nobody_passes_it() -> None:
    scheduler = small(num_blocks=4)
    scheduler.submit(ask("a", 8, max_tokens=2), 0.0)
    scheduler.submit(ask("b", 12), 0.0)
    scheduler.submit(ask("c", 2), 0.0)
    assert step(scheduler)["new"] == ["a"]
    assert gate(scheduler) == ("blocks", "b", 1)
    assert step(scheduler)["new"] == []
    assert step(scheduler)["new"] == ["b", "c"]


def test_a_waiting_request_never_preempts_under_fcfs() -> None:
    scheduler = small(num_blocks=4, max_num_seqs=1)
    scheduler.submit(ask("a", 3, max_tokens=9, priority=5), 0.0)
    step(scheduler)
    scheduler.submit(ask("b", 3, priority=0), 0.0)
    for _ in range(8):
        assert step(scheduler)["preempted"] == []
    assert step(scheduler)["new"] == ["b"]


def test_a_failed_admission_changes_nothing() -> None:
    scheduler = small(num_blocks=5)
    scheduler.submit(ask("a", 12, max_tokens=2), 0.0)
    step(scheduler)
    finish_all(scheduler)
    scheduler.submit(ask("b", 9, max_tokens=9), 0.0)
    step(scheduler)  # 3 of the 5 blocks, one of them a cached one
    cached = findable(scheduler, ask("a", 12).prompt.tolist())
    scheduler.submit(ask("a", 12), 0.0)
    before = scheduler.snapshot()["free_blocks"], scheduler.stats.admissions
    commit(scheduler, scheduler.plan(0.0))
    assert (scheduler.snapshot()["free_blocks"], scheduler.stats.admissions) == before
    assert findable(scheduler, ask("a", 12).prompt.tolist()) == cached > 0
    assert scheduler.snapshot()["waiting"] == ["a"]


def test_a_watermark_of_free_blocks_is_left_by_admissions() -> None:
    scheduler = small(num_blocks=10, watermark=0.2)  # two blocks
    scheduler.submit(ask("a", 12, max_tokens=20), 0.0)
    scheduler.submit(ask("b", 20), 0.0)  # 5 blocks, and 2 of the other 7 stay free
    assert step(scheduler)["new"] == ["a", "b"]
    scheduler.submit(ask("c", 2), 0.0)
    assert step(scheduler)["new"] == []  # the residents themselves grew into the watermark
    assert gate(scheduler) == ("blocks", "c", 3)
    assert scheduler.snapshot()["free_blocks"] == 0


def test_one_block_less_than_the_watermark_is_too_few() -> None:
    scheduler = small(num_blocks=10, watermark=0.2)
    scheduler.submit(ask("a", 12, max_tokens=2), 0.0)
    scheduler.submit(ask("b", 24), 0.0)
    assert step(scheduler)["new"] == ["a"]
    assert gate(scheduler) == ("blocks", "b", 1)


def test_the_watermark_is_ignored_while_nobody_runs() -> None:
    """Or a large request would wait for ever."""
    scheduler = small(num_blocks=10, watermark=0.9)
    scheduler.submit(ask("a", 40, max_tokens=1), 0.0)
    scheduler.submit(ask("b", 2, max_tokens=1), 0.0)
    finish_all(scheduler)
    assert scheduler.stats.finished == 2


# -- preemption --------------------------------------------------------------


def test_the_newest_resident_gives_way_when_blocks_run_out() -> None:
    scheduler = crowded()
    plan = scheduler.plan(0.0).to_dict()
    assert (plan["preempted"], plan["tokens"]) == (["b"], {"a": 1})
    assert list(plan["blocks"]) == ["a"]
    assert scheduler.snapshot()["waiting"] == ["b"]


def test_nobody_is_admitted_in_a_step_that_preempted() -> None:
    """Not even one for which there would be room: the pool has two blocks left."""
    scheduler = crowded()
    scheduler.submit(ask("c", 2, max_tokens=2), 0.0)
    plan = step(scheduler)
    assert (plan["preempted"], plan["new"], plan["resumed"]) == (["b"], [], [])
    assert scheduler.snapshot()["free_blocks"] == 1
    assert gate(scheduler) == ("preempted", "b", 1)


def test_a_victim_goes_back_to_the_front() -> None:
    scheduler = crowded()
    scheduler.submit(ask("c", 2, max_tokens=2), 0.0)
    step(scheduler)
    assert scheduler.snapshot()["waiting"] == ["b", "c"]


def test_a_victim_comes_back_as_soon_as_there_is_room() -> None:
    scheduler = crowded()
    plans = [step(scheduler) for _ in range(6)]
    assert [plan["resumed"] for plan in plans] == [[], [], [], [], ["b"], []]
    assert finish_all(scheduler) == {"b": [9] * 2}


def test_as_many_give_way_as_are_needed_and_no_more() -> None:
    """Five residents need five blocks, two are free: three blocks come from two victims."""
    scheduler = small(num_blocks=7, max_num_seqs=5)
    for name in "abcde":
        scheduler.submit(ask(name, 4, max_tokens=8), 0.0)
    step(scheduler)
    plan = step(scheduler)
    assert (plan["preempted"], list(plan["tokens"])) == (["e", "d"], ["a", "b", "c"])
    assert scheduler.snapshot()["waiting"] == ["d", "e"]


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("reserve", [True, False])
def test_output_is_the_same_with_preemption_as_without(depth: int, reserve: bool) -> None:
    scheduler = small(num_blocks=6, max_num_batched_tokens=9, reserve_full_prompt=reserve)
    asked = [ask(name, 4 + number, max_tokens=9) for number, name in enumerate("abcd")]
    for one in asked:
        scheduler.submit(one, 0.0)
    pipeline = Pipeline(scheduler, depth).run()
    assert pipeline.got == {one.id: reference(one, 50, 64)[0] for one in asked}
    assert scheduler.stats.preemptions > 0


def test_the_cheapest_resident_gives_way_if_that_is_set() -> None:
    """The newest of those who would have to compute least again: not "c", the newest of all."""
    scheduler = small(num_blocks=7, max_num_seqs=3, victim="cheapest")
    for name, length in (("a", 8), ("b", 4), ("c", 12)):
        scheduler.submit(ask(name, length, max_tokens=4), 0.0)
    step(scheduler)
    assert step(scheduler)["preempted"] == ["b"]


# -- displacement on arrival -------------------------------------------------


def displacing(**settings: Any) -> Scheduler:
    return small(policy="priority", preempt_on_arrival=True, **settings)


def test_a_strictly_better_arrival_takes_the_slot_of_the_worst() -> None:
    scheduler = displacing(max_num_seqs=2)
    scheduler.submit(ask("worst", 4, max_tokens=9, priority=5), 0.0)
    scheduler.submit(ask("bad", 4, max_tokens=9, priority=3), 0.0)
    step(scheduler)
    scheduler.submit(ask("good", 4, priority=1), 0.0)
    plan = step(scheduler)
    assert (plan["preempted"], plan["new"]) == (["worst"], ["good"])
    assert plan["tokens"] == {"bad": 1, "good": 4}


def test_an_equal_arrival_takes_nothing() -> None:
    scheduler = displacing(max_num_seqs=1)
    scheduler.submit(ask("a", 4, max_tokens=9, priority=1), 0.0)
    step(scheduler)
    scheduler.submit(ask("b", 4, priority=1), 0.0)
    assert step(scheduler)["preempted"] == []


def test_an_arrival_that_fits_displaces_nobody() -> None:
    scheduler = displacing()
    scheduler.submit(ask("a", 4, max_tokens=9, priority=5), 0.0)
    step(scheduler)
    scheduler.submit(ask("b", 4, priority=1), 0.0)
    plan = step(scheduler)
    assert (plan["preempted"], plan["new"]) == ([], ["b"])


def test_nobody_is_displaced_in_vain() -> None:
    """The worse one holds one block, and three are missing: it stays where it is."""
    scheduler = displacing(num_blocks=6)
    scheduler.submit(ask("equal", 17, max_tokens=4, priority=1), 0.0)
    scheduler.submit(ask("worse", 3, max_tokens=2, priority=5), 0.0)
    step(scheduler)
    scheduler.submit(ask("good", 12, priority=1), 0.0)
    plan = scheduler.plan(0.0).to_dict()
    assert (plan["preempted"], plan["new"]) == ([], [])
    assert plan["tokens"] == {"equal": 1, "worse": 1}


def test_nobody_is_displaced_in_vain_for_blocks_that_those_who_stay_need_now() -> None:
    """Two blocks are free and one would become so, but "stays" takes one in this very step."""
    scheduler = displacing(num_blocks=4)
    scheduler.submit(ask("stays", 4, max_tokens=4, priority=1), 0.0)
    scheduler.submit(ask("worse", 2, max_tokens=3, priority=5), 0.0)
    step(scheduler)
    scheduler.submit(ask("good", 12, max_tokens=1, priority=1), 0.0)
    plan = step(scheduler)
    assert (plan["preempted"], plan["new"]) == ([], [])


def test_blocks_are_a_reason_to_displace() -> None:
    scheduler = displacing(num_blocks=6)
    scheduler.submit(ask("a", 9, max_tokens=9, priority=5), 0.0)
    scheduler.submit(ask("b", 9, max_tokens=9, priority=4), 0.0)
    step(scheduler)
    scheduler.submit(ask("good", 9, priority=1), 0.0)
    plan = step(scheduler)
    assert (plan["preempted"], plan["new"]) == (["a"], ["good"])


def test_blocks_that_the_displaced_share_are_free_once_all_of_them_go() -> None:
    scheduler = displacing(num_blocks=5)
    for name in "ab":
        scheduler.submit(ask(name, range(9), max_tokens=3, priority=5), 0.0)
    step(scheduler)
    assert scheduler.snapshot()["free_blocks"] == 1  # 2 blocks are shared, and each has its own
    scheduler.submit(ask("good", 14, max_tokens=3, priority=1), 0.0)  # 4 blocks
    plan = step(scheduler)
    assert (plan["preempted"], plan["new"]) == (["b", "a"], ["good"])


def test_blocks_that_the_displaced_share_with_those_who_stay_are_not() -> None:
    scheduler = displacing(num_blocks=5)
    scheduler.submit(ask("a", range(9), max_tokens=3, priority=1), 0.0)
    scheduler.submit(ask("b", range(9), max_tokens=3, priority=5), 0.0)
    step(scheduler)
    scheduler.submit(ask("good", 12, max_tokens=3, priority=1), 0.0)  # 3 blocks
    plan = step(scheduler)
    assert (plan["preempted"], plan["new"]) == ([], [])


def test_a_hit_on_a_block_of_the_displaced_is_not_free_as_well() -> None:
    """ "good" finds 2 of the 3 blocks of "b" and needs 2 further ones: 4 of 4 in all."""
    scheduler = displacing(num_blocks=4)
    scheduler.submit(ask("b", range(9), max_tokens=3, priority=5), 0.0)
    step(scheduler)
    scheduler.submit(ask("good", [*range(8), *range(50, 58)], max_tokens=1, priority=1), 0.0)
    plan = scheduler.plan(0.0)
    assert (plan.preempted, plan.to_dict()["new"]) == (("b",), ["good"])
    assert plan.admitted[0].computed == 8
    scheduler.check()


def test_nobody_is_displaced_while_admission_is_paused() -> None:
    scheduler = displacing(max_num_seqs=1)
    scheduler.submit(ask("a", 4, max_tokens=9, priority=5), 0.0)
    step(scheduler)
    scheduler.pause()
    scheduler.submit(ask("b", 4, priority=1), 0.0)
    plan = step(scheduler)
    assert (plan["preempted"], plan["tokens"]) == ([], {"a": 1})


# -- the parked --------------------------------------------------------------


def test_a_parked_head_does_not_block_those_behind_it() -> None:
    scheduler = small(max_num_seqs=2)
    scheduler.submit(ask("a", 4), 0.0, parked="grammar")
    scheduler.submit(ask("b", 4), 0.0)
    scheduler.submit(ask("c", 4, max_tokens=1), 0.0)
    scheduler.submit(ask("d", 4), 0.0)
    assert step(scheduler)["new"] == ["b", "c"]
    scheduler.wake("a", 0.0)
    assert step(scheduler)["new"] == ["a"]


def test_nobody_stands_at_the_gate_once_the_last_who_waited_is_parked() -> None:
    scheduler = small(max_num_seqs=1)
    scheduler.submit(ask("a", 5, max_tokens=20), 0.0)
    scheduler.submit(ask("b", 5), 0.0)
    for _ in range(3):
        step(scheduler)
    assert gate(scheduler) == ("seqs", "b", 1)
    scheduler.park("b", "grammar", 0.0)
    step(scheduler)
    assert gate(scheduler) is None


# -- in flight ---------------------------------------------------------------


def test_a_sample_in_flight_is_computed_on_without_being_known() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 5, max_tokens=9), 0.0)
    plans = [scheduler.plan(0.0) for _ in range(3)]
    assert [(plan.start.tolist(), plan.total) for plan in plans] == [([0], 5), ([5], 1), ([6], 1)]
    assert all(plan.rows.samples.all() for plan in plans)


def test_an_empty_plan_has_no_rows_and_is_not_in_flight() -> None:
    scheduler = small()
    plan = scheduler.plan(0.0)
    assert (len(plan.rows), plan.total) == (0, 0)
    assert scheduler.idle
    assert gate(scheduler) is None
