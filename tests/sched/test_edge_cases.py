"""What a new scheduler easily gets wrong, one test for each.

The numbers follow a list of edge cases of schedulers in the field. Those of encoders, remote
transfers and sliding windows come with the features.
"""

from typing import Any

import numpy as np
import pytest

from paceline import Item, RequestError, Scheduler, StepResult
from paceline.core.events import Happened
from paceline.sim.reference import reference
from tests.sched.support import (
    Pipeline,
    answer,
    ask,
    commit,
    counters,
    crowded,
    findable,
    finish_all,
    preempt,
    sequence,
    small,
    state,
    step,
    tokens_of_steps,
)

PROMPT = list(range(100, 113))
EOS, STOP, PLAIN = 2, 7, 9
DISCIPLINES = pytest.mark.parametrize("discipline", ["unified", "prefill_first"])


def drafting(drafts: int = 3, **settings: Any) -> Scheduler:
    return small(num_speculative_tokens=drafts, speculation="fixed", **settings)


def by_priority(**settings: Any) -> Scheduler:
    return small(policy="priority", **settings)


# -- queues and victims ------------------------------------------------------


def test_01_requests_that_were_set_aside_come_back_in_their_order() -> None:
    """Setting several aside in one step and waking them does not turn them round."""
    scheduler = small(max_num_seqs=1)
    for name in "abcd":
        scheduler.submit(ask(name, 3), 0.0)
    for name in "ab":
        scheduler.park(name, "grammar", 0.0)
    for name in "ab":
        scheduler.wake(name, 0.0)
    assert scheduler.snapshot()["waiting"] == ["a", "b", "c", "d"]


def test_02_a_victim_earlier_in_the_order_makes_nobody_miss_the_step() -> None:
    """The worst priority is the oldest resident; everybody behind it is still served."""
    scheduler = by_priority(num_blocks=5, max_num_seqs=3)
    scheduler.submit(ask("worst", 4, max_tokens=8, priority=9), 0.0)
    scheduler.submit(ask("b", 4, max_tokens=8, priority=1), 0.0)
    scheduler.submit(ask("c", 4, max_tokens=8, priority=1), 0.0)
    step(scheduler)  # 3 blocks held, 2 free, and each needs one more
    plan = step(scheduler)
    assert (plan["preempted"], plan["tokens"]) == (["worst"], {"b": 1, "c": 1})


def test_03_a_victim_leaves_no_trace_in_the_step_and_its_budget_goes_to_others() -> None:
    """Its row and its blocks are gone, and the prompt behind it gets its token of the budget."""
    scheduler = by_priority(num_blocks=5, max_num_batched_tokens=8, reserve_full_prompt=False)
    scheduler.submit(ask("worst", 4, max_tokens=16, priority=9), 0.0)
    step(scheduler)
    scheduler.submit(ask("b", 20, max_tokens=1, priority=0), 0.0)
    assert step(scheduler)["tokens"] == {"worst": 1, "b": 7}
    plan = step(scheduler)  # with 7 tokens more "b" would need 4 blocks, beside 2 of the worst
    assert (plan["preempted"], plan["tokens"]) == (["worst"], {"b": 8})
    assert list(plan["blocks"]) == ["b"]


def test_04_a_resident_that_gives_itself_up_does_not_end_the_step_for_others() -> None:
    """The worst needs the block and is the victim; those behind it still run."""
    scheduler = by_priority(num_blocks=4, max_num_seqs=3)
    scheduler.submit(ask("a", 2, max_tokens=8, priority=1), 0.0)
    scheduler.submit(ask("worst", 4, max_tokens=8, priority=9), 0.0)
    scheduler.submit(ask("c", 7, max_tokens=8, priority=1), 0.0)
    step(scheduler)
    plan = step(scheduler)
    assert (plan["preempted"], plan["tokens"]) == (["worst"], {"a": 1, "c": 1})


def test_05_nobody_is_admitted_in_a_step_that_preempted() -> None:
    """Even though the victim left more than was needed."""
    scheduler = small(num_blocks=5, max_num_seqs=3)
    scheduler.submit(ask("a", 4, max_tokens=8), 0.0)
    scheduler.submit(ask("b", 16, max_tokens=4), 0.0)
    step(scheduler)
    scheduler.submit(ask("c", 3), 0.0)
    plan = step(scheduler)
    assert (plan["preempted"], plan["new"]) == (["b"], [])
    assert scheduler.snapshot()["free_blocks"] == 3
    assert step(scheduler)["new"] == []  # "b" is first, and its 5 blocks are not there


def test_06_the_victim_is_the_worst_of_all_residents_the_newest_among_equals() -> None:
    """Neither the requester nor the last in the list, but the worst priority anywhere."""
    scheduler = by_priority(num_blocks=7, max_num_seqs=4)
    for name, priority in (("a", 3), ("b", 5), ("c", 5), ("d", 1)):
        scheduler.submit(ask(name, 4, max_tokens=8, priority=priority), 0.0)
    step(scheduler)
    assert step(scheduler)["preempted"] == ["c"]


def test_07_output_in_flight_when_its_request_is_preempted_is_dropped_and_sampled_again() -> None:
    """The client gets each token once, and the same one."""
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


def test_08_drafts_rejected_after_a_preemption_take_nothing_away() -> None:
    """The counters of a resumed sequence are its own, not those of the step that was lost."""
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


def test_08b_nor_once_it_runs_again() -> None:
    """The late result comes when the resumed sequence already has work in flight."""
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


def test_09_the_ends_told_by_a_plan_stay_told() -> None:
    """A later end is in the next plan and not in one that was handed out before."""
    scheduler = small()
    for name in "ab":
        scheduler.submit(ask(name, 3), 0.0)
    step(scheduler)
    scheduler.abort("a", 0.0)
    first = scheduler.plan(0.0)
    scheduler.abort("b", 0.0)
    second = scheduler.plan(0.0)
    assert (first.finished, second.finished) == (("a",), ("b",))


def test_10_an_empty_step_tells_who_ended() -> None:
    """The last end of all still reaches the runner."""
    scheduler = small()
    scheduler.submit(ask("a", 3, max_tokens=1), 0.0)
    step(scheduler)
    plan = scheduler.plan(0.0)
    assert (len(plan.rows), plan.finished, plan.released) == (0, ("a",), (0,))


# -- the prefix cache --------------------------------------------------------


@pytest.mark.parametrize(("length", "hit"), [(4, 0), (5, 4), (8, 4), (9, 8), (12, 8)])
def test_11_the_last_known_token_is_always_computed(length: int, hit: int) -> None:
    """A prompt of k full blocks that are all cached hits k - 1 of them."""
    scheduler = small()
    for name in "ab":
        scheduler.submit(ask(name, PROMPT[:length], max_tokens=1), 0.0)
        assert step(scheduler)["tokens"] == {name: length - (hit if name == "b" else 0)}


def test_12_a_hit_that_is_free_counts_as_needed_and_a_failure_leaves_it_free() -> None:
    """Two of three blocks are hits, but they are on the free list too: 3 needed, 2 there."""
    scheduler = small(num_blocks=4)
    scheduler.submit(ask("a", PROMPT[:9], max_tokens=1), 0.0)
    finish_all(scheduler)
    scheduler.submit(ask("b", 5, max_tokens=4), 0.0)
    step(scheduler)  # takes the two blocks without content
    scheduler.submit(ask("c", PROMPT[:9], max_tokens=1), 0.0)
    assert step(scheduler)["new"] == []
    assert scheduler.snapshot()["free_blocks"] == 2
    assert findable(scheduler, PROMPT[:9]) == 8
    gate = scheduler.state.journal.spells[-1].gate
    assert (gate.reason, gate.short) == ("blocks", 1)


def test_13_a_hit_is_held_before_new_blocks_are_taken() -> None:
    """Or the new block of "b" would be the very one that it hit."""
    scheduler = small(num_blocks=2)
    scheduler.submit(ask("a", PROMPT[:8], max_tokens=1), 0.0)
    finish_all(scheduler)  # of its two blocks the second is the first to be taken
    scheduler.submit(ask("b", [*PROMPT[:4], 50, 51], max_tokens=1), 0.0)
    plan = scheduler.plan(0.0)
    assert plan.admitted[0].computed == 4
    assert len(set(plan.admitted[0].blocks)) == 2
    assert findable(scheduler, PROMPT[:8]) == 4


def test_14_every_block_of_the_pool_is_usable() -> None:
    """There is no null block: a request may hold all of them, and a reset needs none left."""
    scheduler = small(num_blocks=3)
    scheduler.submit(ask("a", 12, max_tokens=1), 0.0)
    plan = scheduler.plan(0.0)
    assert sorted(plan.admitted[0].blocks) == [0, 1, 2]
    assert scheduler.usage == 1.0
    commit(scheduler, plan)
    assert (scheduler.usage, scheduler.reset_prefix_cache()) == (0.0, True)


def test_15_never_sealed_blocks_are_reused_first_and_the_deepest_before_its_parents() -> None:
    """ "a" leaves 0, 1, 2 with content and 3 without; 4 was never used."""
    scheduler = small(num_blocks=5)
    scheduler.submit(ask("a", 13, max_tokens=1), 0.0)
    assert scheduler.plan(0.0).admitted[0].blocks == (0, 1, 2, 3)
    scheduler.abort("a", 0.0)
    scheduler.submit(ask("b", 20, max_tokens=1), 0.0)
    assert scheduler.plan(0.0).admitted[0].blocks == (3, 4, 2, 1, 0)


def test_15b_with_the_lru_order_used_blocks_queue_up_behind_unused_ones() -> None:
    scheduler = small(num_blocks=5, free_order="lru")
    scheduler.submit(ask("a", 13, max_tokens=1), 0.0)
    scheduler.plan(0.0)
    scheduler.abort("a", 0.0)
    scheduler.submit(ask("b", 20, max_tokens=1), 0.0)
    assert scheduler.plan(0.0).admitted[0].blocks == (4, 3, 2, 1, 0)


def test_16_evicting_one_of_two_equal_blocks_keeps_the_other() -> None:
    """Both computed the third block of an aligned prompt; taking one back loses nothing."""
    scheduler = small(num_blocks=5)
    for name in "ab":
        scheduler.submit(ask(name, PROMPT[:12], max_tokens=1), 0.0)
    finish_all(scheduler)
    assert findable(scheduler, PROMPT[:12]) == 12
    scheduler.submit(ask("c", 8, max_tokens=1), 0.0)  # the block without content, and a twin
    step(scheduler)
    assert findable(scheduler, PROMPT[:12]) == 12


def test_17_a_block_keeps_its_content_until_it_is_taken() -> None:
    """Freeing forgets nothing; reuse forgets at once, also if the reuse is given up."""
    scheduler = small(num_blocks=3)
    scheduler.submit(ask("a", PROMPT[:12], max_tokens=1), 0.0)
    finish_all(scheduler)
    assert findable(scheduler, PROMPT[:12]) == 12
    scheduler.submit(ask("b", 9, max_tokens=1), 0.0)
    scheduler.retry(scheduler.plan(0.0), 0.0)
    assert findable(scheduler, PROMPT[:12]) == 0


def test_18_drafts_have_no_content_until_they_are_accepted() -> None:
    """Positions 4 to 7 are planned with drafts, and nobody can find them."""
    scheduler = drafting(3)
    scheduler.submit(ask("a", PROMPT[:4], max_tokens=20), 0.0)
    step(scheduler, a=[1])
    scheduler.plan(0.0)
    scheduler.submit(ask("b", [*PROMPT[:4], 1, 2, 3, 4, 5]), 0.0)
    assert scheduler.plan(0.0).admitted[0].computed == 4


def test_19_blocks_are_visible_within_the_step_that_computes_them() -> None:
    """Two equal prompts that arrive together are computed once."""
    scheduler = small()
    for name in "ab":
        scheduler.submit(ask(name, PROMPT), 0.0)
    assert step(scheduler)["tokens"] == {"a": 13, "b": 1}


def test_20_a_salt_separates_all_blocks_though_it_enters_only_the_first() -> None:
    """A block beyond the first chains to the salted one."""
    scheduler = small()
    scheduler.submit(ask("a", PROMPT, max_tokens=1, cache_salt="pepper"), 0.0)
    finish_all(scheduler)
    assert findable(scheduler, PROMPT, cache_salt="pepper") == 12
    assert findable(scheduler, PROMPT) == 0
    assert findable(scheduler, PROMPT, cache_salt="salt") == 0
    assert findable(scheduler, PROMPT, adapter="pepper") == 0


# -- stopping ----------------------------------------------------------------


def test_21_min_tokens_never_make_an_endless_request() -> None:
    """At the model length it ends, whatever the least number of tokens was to be."""
    scheduler = small(max_model_len=8)
    scheduler.submit(ask("a", 5, max_tokens=None, min_tokens=99, eos_token_ids=(PLAIN,)), 0.0)
    assert finish_all(scheduler) == {"a": [PLAIN] * 3}


def test_22_a_stop_on_the_last_allowed_token_is_a_stop() -> None:
    """And the token that did it is named, an end token as well as a stop token."""
    for asked in ({"eos_token_ids": (EOS,)}, {"stop_token_ids": (EOS,)}):
        scheduler = small()
        scheduler.submit(ask("a", 3, max_tokens=1, **asked), 0.0)
        plan = scheduler.plan(0.0)
        (end,) = scheduler.commit(plan, answer(plan, {"a": [EOS]}), 0.0).finished
        assert (end.finish.value, end.stop_token) == ("stop", EOS)


def test_23_tokens_after_the_stop_in_a_step_of_several_are_dropped() -> None:
    """The client never sees them, and the block they would have filled has no content."""
    scheduler = drafting(6)
    scheduler.submit(ask("a", PROMPT[:6], max_tokens=20, stop_token_ids=(STOP,)), 0.0)
    step(scheduler, a=[1])
    told = commit(scheduler, scheduler.plan(0.0), a=[STOP, 3, 4, 5, 6, 8, 8])
    assert told == {"a": {"tokens": [STOP], "finish": "stop"}}
    assert state(scheduler, "a")["known"] == 8
    assert findable(scheduler, [*PROMPT[:6], 1, STOP, 3, 4, 5, 6]) == 8


# -- multimodal items in keys ------------------------------------------------


def test_24_a_block_that_begins_where_an_item_ends_does_not_contain_it() -> None:
    """But it chains to the blocks that do; an equal item elsewhere is other content."""
    scheduler = small()
    image = Item("cat", offset=1, length=3)
    scheduler.submit(ask("a", PROMPT, max_tokens=1, items=(image,)), 0.0)
    finish_all(scheduler)
    same, moved = (Item("cat", offset, length=3) for offset in (1, 2))
    assert findable(scheduler, PROMPT, items=(same,)) == 12
    assert findable(scheduler, PROMPT, items=(moved,)) == 0
    assert findable(scheduler, PROMPT, items=(Item("dog", 1, 3),)) == 0
    assert findable(scheduler, PROMPT, items=(same, Item("dog", 9, 2))) == 8
    assert findable(scheduler, PROMPT) == 0


def test_25_generated_blocks_know_the_items_of_the_prompt() -> None:
    """A block that begins inside an item and ends with an output carries the item's name."""
    scheduler = small()
    image = Item("cat", offset=3, length=3)
    scheduler.submit(ask("a", PROMPT[:6], max_tokens=4, items=(image,)), 0.0)
    for token in range(4):
        step(scheduler, a=[token])
    grown = [*PROMPT[:6], 0, 1]
    assert findable(scheduler, grown, items=(image,)) == 8
    assert findable(scheduler, grown, items=(Item("dog", 3, 3),)) == 0


# -- asynchrony --------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize("max_tokens", [1, 2, 7])
def test_26_no_step_is_wasted_at_max_tokens(depth: int, max_tokens: int) -> None:
    """All that is ever planned is the prompt and all outputs but the last."""
    scheduler = small()
    scheduler.submit(ask("a", 5, max_tokens=max_tokens), 0.0)
    pipeline = Pipeline(scheduler, depth).run()
    assert pipeline.planned("a") == 5 + max_tokens - 1
    assert scheduler.stats.stale_rows == 0


def test_27_an_abort_between_plan_and_result_yields_nothing() -> None:
    """Neither a token nor a second end."""
    scheduler = small()
    scheduler.submit(ask("a", 3, max_tokens=1), 0.0)
    plan = scheduler.plan(0.0)
    scheduler.abort("a", 0.0)
    outputs = scheduler.commit(plan, answer(plan), 0.0)
    assert (outputs.to_dict(), outputs.finished) == ({}, ())


def test_28_a_reset_with_steps_in_flight_drops_exactly_what_was_in_flight() -> None:
    """Tokens that were already given stay, the others come again."""
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


def test_29_a_preemption_leaves_no_sample_in_flight_on_the_books() -> None:
    """A resumed sequence wants all it knows, and not what it once expected."""
    scheduler = small(num_blocks=4, max_num_seqs=2)
    scheduler.submit(ask("a", 8, max_tokens=8), 0.0)
    scheduler.submit(ask("b", 4, max_tokens=8), 0.0)
    plans = [scheduler.plan(0.0), scheduler.plan(0.0)]
    assert plans[1].preempted == ("b",)
    assert counters(scheduler, "b") == (4, 0, 0)
    for plan in plans:
        commit(scheduler, plan)
    assert counters(scheduler, "b") == (4, 0, 0)
    assert len(finish_all(scheduler)["b"]) == 8


def test_30_a_resumed_sequence_tells_all_its_blocks_and_a_running_one_the_new_ones() -> None:
    """And one that needs no new block tells none."""
    scheduler = small()
    scheduler.submit(ask("a", 4, max_tokens=9), 0.0)
    assert len(step(scheduler)["blocks"]["a"][0]) == 1
    assert len(step(scheduler)["blocks"]["a"][0]) == 1
    assert step(scheduler)["blocks"] == {}
    scheduler.reset_prefix_cache(reset_running_requests=True)
    assert len(step(scheduler)["blocks"]["a"][0]) == 2


def test_31_a_resumed_sequence_brings_all_its_tokens() -> None:
    """The runner keeps nothing of a sequence that left its slot."""
    scheduler = small()
    scheduler.submit(ask("a", PROMPT, max_tokens=9), 0.0)
    step(scheduler, a=[1])
    step(scheduler, a=[2])
    scheduler.retry(scheduler.plan(0.0), 0.0)
    (again,) = scheduler.plan(0.0).admitted
    assert again.tokens.tolist() == [*PROMPT, 1, 2]


# -- a step ------------------------------------------------------------------


def test_32_lack_of_blocks_preempts_for_a_resident_and_stops_at_a_waiting_one() -> None:
    """The same shortage, once for each."""
    scheduler = small(num_blocks=3)
    scheduler.submit(ask("a", 4, max_tokens=5), 0.0)
    scheduler.submit(ask("b", 4, max_tokens=5), 0.0)
    scheduler.submit(ask("c", 8), 0.0)
    first, second = step(scheduler), step(scheduler)
    assert (first["new"], first["preempted"]) == (["a", "b"], [])
    assert (second["new"], second["preempted"]) == ([], ["b"])


def test_33_without_chunks_a_long_head_stops_those_behind_it() -> None:
    """Head-of-line blocking is meant: the long one would otherwise never get in."""
    scheduler = small(enable_chunked_prefill=False, max_num_batched_tokens=64, num_blocks=64)
    for name, length in (("a", 40), ("long", 40), ("short", 3)):
        scheduler.submit(ask(name, length, max_tokens=2), 0.0)
    assert tokens_of_steps(scheduler, 2) == [{"a": 40}, {"a": 1, "long": 40, "short": 3}]


def test_34_the_long_prefill_threshold_holds_for_all_and_before_the_budget() -> None:
    """Three prompts of 800 with a budget of 1,024 and at most 400 each."""
    scheduler = Scheduler.create(
        max_num_seqs=8,
        max_num_batched_tokens=1024,
        max_model_len=2048,
        num_blocks=400,
        block_size=16,
        long_prefill_token_threshold=400,
    )
    for name in "abc":
        scheduler.submit(ask(name, 800, max_tokens=10), 0.0)
    assert [list(tokens.values()) for tokens in tokens_of_steps(scheduler, 3)] == [
        [400, 400, 224],
        [400, 400, 224],
        [1, 1, 352],
    ]


def test_35_running_does_not_mean_that_it_is_in_the_step() -> None:
    """One whose last sample is still in flight has nothing to compute, and keeps its blocks."""
    scheduler = small()
    scheduler.submit(ask("a", 2, max_tokens=1), 0.0)
    scheduler.submit(ask("b", 2, max_tokens=9), 0.0)
    scheduler.plan(0.0)
    assert scheduler.plan(0.0).to_dict()["tokens"] == {"b": 1}
    assert scheduler.snapshot()["running"] == ["a", "b"]
    assert len(state(scheduler, "a")["blocks"][0]) == 1
    assert scheduler.why() == {}


def test_41_a_chunk_of_a_prompt_has_no_drafts() -> None:
    """Thirty tokens are thirty, with three drafts expected."""
    scheduler = drafting(3, max_num_batched_tokens=20)
    scheduler.submit(ask("a", 30, max_tokens=9), 0.0)
    plans = [step(scheduler) for _ in range(2)]
    assert [(plan["total"], plan["drafts"]) for plan in plans] == [(20, {}), (10, {})]


def test_42_blocks_held_for_rejected_drafts_of_one_do_not_pay_for_another() -> None:
    """ "a" has a block more than it needs now; "b" still needs its own."""
    scheduler = drafting(4, num_blocks=8, max_num_seqs=2)
    scheduler.submit(ask("a", 4, max_tokens=12), 0.0)
    scheduler.submit(ask("b", 3, max_tokens=12, drafts=0), 0.0)
    step(scheduler)
    plan = step(scheduler, a=[1])  # positions 4 to 8 of "a": two blocks, all drafts rejected
    assert len(plan["blocks"]["a"][0]) == 2
    plan = step(scheduler, a=[1])
    assert {name: len(new[0]) for name, new in plan["blocks"].items()} == {"b": 1}


def test_43_drafts_never_reach_past_the_model_length() -> None:
    """The last position is never computed, however many drafts are expected."""
    scheduler = drafting(3, max_model_len=8)
    scheduler.submit(ask("a", 6, max_tokens=None), 0.0)
    step(scheduler)
    plan = scheduler.plan(0.0)
    assert (plan.total, plan.to_dict()["drafts"]) == (1, {})
    assert commit(scheduler, plan) == {"a": {"tokens": [PLAIN], "finish": "length"}}


def test_44_the_positions_of_a_drafter_end_with_the_model_length() -> None:
    """Seven positions and four more would be three blocks; the model has eight positions."""
    scheduler = small(max_model_len=8, lookahead_slots=4, num_blocks=2)
    scheduler.submit(ask("a", 7, max_tokens=1), 0.0)
    assert len(scheduler.plan(0.0).admitted[0].blocks) == 2


def test_45_the_positions_of_a_drafter_are_there_from_the_first_step() -> None:
    """The drafter writes beside the last chunk of the prompt already."""
    scheduler = small(lookahead_slots=2)
    scheduler.submit(ask("a", 3), 0.0)
    assert len(scheduler.plan(0.0).admitted[0].blocks) == 2


def test_52_an_abort_during_the_last_step_wins_over_the_length() -> None:
    """It ended when it was aborted; what comes afterwards changes nothing."""
    scheduler = small()
    scheduler.submit(ask("a", 3, max_tokens=2), 0.0)
    step(scheduler)
    last = scheduler.plan(0.0)
    scheduler.abort("a", 0.0)
    assert commit(scheduler, last) == {}
    assert state(scheduler, "a")["state"] == "FINISHED_ABORTED"


def test_53_an_abort_that_comes_twice_is_one() -> None:
    """The second says that there was nothing to do."""
    scheduler = small()
    scheduler.submit(ask("a", 3), 0.0)
    assert [scheduler.abort("a", 0.0) for _ in range(3)] == [True, False, False]
    assert scheduler.stats.finished == 1
    assert scheduler.plan(0.0).finished == ("a",)


def test_60_a_request_is_admitted_once_and_resumed_after_that() -> None:
    """So that the time in the queue is that of the first admission."""
    scheduler = small()
    scheduler.submit(ask("a", 3, max_tokens=9), 0.0)
    for now in range(3):
        step(scheduler, float(now))
        scheduler.reset_prefix_cache(reset_running_requests=True, now=float(now))
    turns = [(m.happened, m.time) for m in sequence(scheduler, "a").life]
    assert [time for turn, time in turns if turn is Happened.ADMITTED] == [0.0]
    assert [time for turn, time in turns if turn is Happened.RESUMED] == [1.0, 2.0]
    assert [time for turn, time in turns if turn is Happened.FIRST_TOKEN] == [0.0]


def test_62_samples_of_one_prompt_have_seeds_of_their_own_and_end_once() -> None:
    """Seed plus index; without a seed none; one that ended is not told of again."""
    for seed, expected in ((7, [7, 8, 9]), (None, [None] * 3)):
        scheduler = small()
        asked = ask("a", 5, max_tokens=4, n=3, seed=seed)
        scheduler.submit(asked, 0.0)
        pipeline = Pipeline(scheduler, depth=2).run()
        admitted = [new.request for plan in pipeline.plans for new in plan.admitted]
        assert [one.seed for one in admitted] == expected
        assert asked.seed == seed
        assert pipeline.ends == {label: ["length"] for label in ("0_a", "1_a", "2_a", "a")}


def test_63_an_abort_of_the_parent_reaches_every_child() -> None:
    """Whether they wait, have yet to fork, run or are on the host; nothing is left of them."""
    for steps in range(4):
        scheduler = small(preemption_mode="swap", swap_space=8)
        scheduler.submit(ask("a", 6, max_tokens=9, n=3), 0.0)
        for _ in range(steps):
            step(scheduler)
        if steps == 3:
            preempt(scheduler, "a")
            step(scheduler)
        assert scheduler.abort("a", 0.0)
        scheduler.check()
        assert (scheduler.idle, scheduler.state.families) == (True, {})
        told = scheduler.snapshot()
        assert (told["free_blocks"], told["host_free_blocks"]) == (16, 8)
        assert scheduler.state.table.vacant == 4
        assert scheduler.plan(0.0).finished == ("a",)


@DISCIPLINES
def test_64_several_victims_of_one_step_keep_their_order(discipline: str) -> None:
    """The newest goes first and ends up behind the others that went."""
    scheduler = small(num_blocks=4, max_num_seqs=4, discipline=discipline)
    for name in "abcd":
        scheduler.submit(ask(name, 4, max_tokens=8), 0.0)
    step(scheduler)
    scheduler.submit(ask("e", 3), 0.0)
    assert step(scheduler)["preempted"] == ["d", "c"]
    assert scheduler.snapshot()["waiting"] == ["c", "d", "e"]


def test_64_several_victims_that_go_to_the_host_keep_their_order() -> None:
    """And come back in it, before those who wait."""
    scheduler = small(num_blocks=4, max_num_seqs=4, preemption_mode="swap", swap_space=8)
    for name in "abcd":
        scheduler.submit(ask(name, 4, max_tokens=8), 0.0)
    step(scheduler)
    scheduler.submit(ask("e", 3), 0.0)
    assert step(scheduler)["preempted"] == ["d", "c"]
    assert scheduler.snapshot()["swapped"] == ["c", "d"]
    came: list[str] = []
    while not scheduler.idle:
        plan = step(scheduler)
        came += plan["resumed"] + plan["new"]
    assert came.index("c") < came.index("d") < came.index("e")


@DISCIPLINES
def test_65_one_on_the_host_keeps_all_who_wait_out(discipline: str) -> None:
    """Also in steps that mix prompts and decodes, and though a block is free for a short one."""
    swap = {"preemption_mode": "swap", "swap_space": 4}
    scheduler = crowded(discipline=discipline, max_num_seqs=3, **swap)
    assert step(scheduler)["preempted"] == ["b"]
    scheduler.submit(ask("c", 1, max_tokens=1), 0.0)
    plans = [step(scheduler)]
    assert scheduler.snapshot()["free_blocks"] == 1
    while scheduler.snapshot()["swapped"]:
        assert scheduler.snapshot()["waiting"] == ["c"]
        plans.append(step(scheduler))
    assert len(plans) > 2


@DISCIPLINES
def test_65_nobody_is_admitted_in_a_step_that_preempted(discipline: str) -> None:
    """Not even in one that mixes prompts and decodes; V0 with chunks did."""
    scheduler = crowded(discipline=discipline, num_blocks=2)
    scheduler.submit(ask("c", 1, max_tokens=1), 0.0)
    plan = step(scheduler)
    assert (plan["preempted"], plan["new"], plan["resumed"]) == (["b"], [], [])


@DISCIPLINES
def test_66_residents_are_counted_once_against_every_limit(discipline: str) -> None:
    """A family of three and two others take five slots of five and five tokens of five."""
    scheduler = small(
        max_num_seqs=5, max_num_batched_tokens=5, discipline=discipline, num_blocks=32
    )
    scheduler.submit(ask("a", 2, max_tokens=9, n=3), 0.0)
    for name in "bc":
        scheduler.submit(ask(name, 2, max_tokens=9), 0.0)
    for _ in range(3):
        step(scheduler)
    assert step(scheduler)["tokens"] == {"0_a": 1, "1_a": 1, "2_a": 1, "b": 1, "c": 1}
    assert scheduler.state.table.vacant == 0


@DISCIPLINES
def test_67_never_is_told_at_once_and_later_is_waited_for(discipline: str) -> None:
    """What fits the empty pool is never refused, whatever the watermark."""
    scheduler = small(num_blocks=4, watermark=0.5, discipline=discipline)
    with pytest.raises(RequestError, match="5 blocks of 4, and the whole pool has 4"):
        scheduler.submit(ask("never", 16, max_tokens=2), 0.0)
    scheduler.submit(ask("first", 3, max_tokens=2), 0.0)
    scheduler.submit(ask("later", 16, max_tokens=1), 0.0)
    assert tokens_of_steps(scheduler, 3) == [{"first": 3}, {"first": 1}, {"later": 16}]


def test_67_a_family_that_can_never_fit_is_told_at_once() -> None:
    """With the blocks of all its sequences, of which those of the prompt count once."""
    scheduler = small(num_blocks=6, watermark=0.5)
    with pytest.raises(RequestError, match="in each of 3 sequences need 8 blocks of 4"):
        scheduler.submit(ask("never", 9, max_tokens=5, n=3), 0.0)
    scheduler.submit(ask("later", 9, max_tokens=4, n=3), 0.0)
    assert len(finish_all(scheduler)["2_later"]) == 4


@DISCIPLINES
def test_68_a_lone_sequence_that_fills_the_pool_runs_to_its_end(discipline: str) -> None:
    """It has nobody to preempt and needs nobody."""
    scheduler = small(num_blocks=3, discipline=discipline)
    scheduler.submit(ask("a", 1, max_tokens=12), 0.0)
    assert finish_all(scheduler) == {"a": [PLAIN] * 12}
    assert scheduler.stats.preemptions == 0


@DISCIPLINES
def test_68_a_lone_sequence_that_cannot_grow_gives_way_to_itself(discipline: str) -> None:
    """The step is empty, and the next ones go on when there are blocks again."""
    scheduler = small(num_blocks=3, discipline=discipline)
    scheduler.submit(ask("a", 4, max_tokens=8), 0.0)
    step(scheduler)
    pool = scheduler.state.cache.pool
    taken = pool.take(pool.free)
    for _ in range(3):
        assert scheduler.plan(0.0).empty
    assert state(scheduler, "a")["preemptions"] == 1
    pool.drop(taken)
    assert finish_all(scheduler) == {"a": [PLAIN] * 7}


@DISCIPLINES
def test_69_the_budget_is_compared_with_what_has_to_be_computed(discipline: str) -> None:
    """A mostly cached prompt longer than what is left of the budget gets in."""
    scheduler = small(
        enable_chunked_prefill=False,
        max_num_batched_tokens=16,
        max_model_len=16,
        discipline=discipline,
    )
    scheduler.submit(ask("a", PROMPT, max_tokens=1), 0.0)
    finish_all(scheduler)
    scheduler.submit(ask("b", 12, max_tokens=1), 0.0)
    scheduler.submit(ask("c", PROMPT, max_tokens=1), 0.0)
    assert step(scheduler)["tokens"] == {"b": 12, "c": 1}


@DISCIPLINES
def test_70_capacity_is_what_is_free_after_the_hit_is_held(discipline: str) -> None:
    """Four blocks are free, but two of them are the hit itself: no room for three more."""
    scheduler = small(num_blocks=6, discipline=discipline)
    scheduler.submit(ask("a", PROMPT[:9], max_tokens=1), 0.0)
    finish_all(scheduler)
    scheduler.submit(ask("b", 5, max_tokens=4), 0.0)
    step(scheduler)
    scheduler.submit(ask("c", [*PROMPT[:8], *range(12)], max_tokens=1), 0.0)
    assert step(scheduler)["new"] == []
    scheduler.check()
    assert scheduler.state.journal.spells[-1].gate.short == 1


def test_71_a_parked_request_holds_no_slot() -> None:
    """However many wait for something else, the slots are for those who run."""
    scheduler = small(max_num_seqs=1)
    for name in "abc":
        scheduler.submit(ask(name, 3), 0.0, parked="grammar")
    scheduler.submit(ask("d", 3), 0.0)
    assert step(scheduler)["new"] == ["d"]


def test_72_equal_priority_and_arrival_go_in_the_order_of_submission() -> None:
    """Not in the order of their ids, and taking one out leaves the others in order."""
    scheduler = by_priority(max_num_seqs=1)
    for name in ("z", "m", "a", "k"):
        scheduler.submit(ask(name, 3, max_tokens=1, priority=1, arrival=0.0), 0.0)
    assert scheduler.snapshot()["waiting"] == ["z", "m", "a", "k"]
    scheduler.abort("m", 0.0)
    assert [step(scheduler)["new"] for _ in range(3)] == [["z"], ["a"], ["k"]]


def test_a_result_in_columns_is_as_good_as_one_by_id() -> None:
    """A runner answers with arrays and never asks for names."""
    scheduler = small()
    for name in "ab":
        scheduler.submit(ask(name, 3), 0.0)
    plan = scheduler.plan(0.0)
    result = StepResult(np.array([[5], [6]], np.int32), np.array([1, 1], np.int32))
    told = scheduler.commit(plan, result, 0.0).to_dict()
    assert {name: one["tokens"] for name, one in told.items()} == {"a": [5], "b": [6]}
