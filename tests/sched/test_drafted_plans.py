"""Drafts in plans: what gives them room, and what shortens them."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from paceline import RequestError, Scheduler, StepResult
from paceline.core.capabilities import Points, StepTimes
from paceline.testing.reference import reference
from tests.sched.support import (
    TOKEN,
    Pipeline,
    ask,
    commit,
    drafting,
    finish_all,
    preempt,
    sequence,
    small,
    state,
    step,
)


def test_a_chunk_of_a_prompt_has_no_drafts() -> None:
    """Edge case 41: Thirty tokens are thirty, with three drafts expected."""
    scheduler = drafting(3, max_num_batched_tokens=20)
    scheduler.submit(ask("a", 30, max_tokens=9), 0.0)
    plans = [step(scheduler) for _ in range(2)]
    assert [(plan["total"], plan["drafts"]) for plan in plans] == [(20, {}), (10, {})]


def test_blocks_held_for_rejected_drafts_of_one_do_not_pay_for_another() -> None:
    """Edge case 42: "a" has a block more than it needs now; "b" still needs its own."""
    scheduler = drafting(4, num_blocks=8, max_num_seqs=2)
    scheduler.submit(ask("a", 4, max_tokens=12), 0.0)
    scheduler.submit(ask("b", 3, max_tokens=12, drafts=0), 0.0)
    step(scheduler)
    plan = step(scheduler, a=[1])  # positions 4 to 8 of "a": two blocks, all drafts rejected
    assert len(plan["blocks"]["a"][0]) == 2
    plan = step(scheduler, a=[1])
    assert {name: len(new[0]) for name, new in plan["blocks"].items()} == {"b": 1}


def test_drafts_never_reach_past_the_model_length() -> None:
    """Edge case 43: The last position is never computed, however many drafts are expected."""
    scheduler = drafting(3, max_model_len=8)
    scheduler.submit(ask("a", 6, max_tokens=None), 0.0)
    step(scheduler)
    plan = scheduler.plan(0.0)
    assert (plan.total, plan.to_dict()["drafts"]) == (1, {})
    assert commit(scheduler, plan) == {"a": {"tokens": [TOKEN], "finish": "length"}}


def test_the_positions_of_a_drafter_end_with_the_model_length() -> None:
    """Edge case 44: Seven positions and four more would be three blocks; the model has eight
    positions."""
    scheduler = small(max_model_len=8, lookahead_slots=4, num_blocks=2)
    scheduler.submit(ask("a", 7, max_tokens=1), 0.0)
    assert len(scheduler.plan(0.0).admitted[0].blocks) == 2


def test_the_positions_of_a_drafter_are_there_from_the_first_step() -> None:
    """Edge case 45: The drafter writes beside the last chunk of the prompt already."""
    scheduler = small(lookahead_slots=2)
    scheduler.submit(ask("a", 3), 0.0)
    assert len(scheduler.plan(0.0).admitted[0].blocks) == 2


def test_a_decode_row_is_one_token_and_its_drafts() -> None:
    scheduler = drafting(3)
    scheduler.submit(ask("a", 5, max_tokens=20), 0.0)
    step(scheduler)
    plan = scheduler.plan(0.0).to_dict()
    assert (plan["tokens"], plan["drafts"], plan["total"]) == ({"a": 4}, {"a": 3}, 4)


def test_an_unfinished_prompt_is_never_drafted_for() -> None:
    scheduler = drafting(3, max_num_batched_tokens=8)
    scheduler.submit(ask("a", 20, max_tokens=20), 0.0)
    found = [step(scheduler) for _ in range(4)]
    assert [(one["tokens"], one["drafts"]) for one in found] == [
        ({"a": 8}, {}),
        ({"a": 8}, {}),
        ({"a": 4}, {}),
        ({"a": 4}, {"a": 3}),
    ]


def test_recomputing_earlier_outputs_is_no_place_for_drafts_either() -> None:
    scheduler = drafting(3)
    scheduler.submit(ask("a", 5, max_tokens=20), 0.0)
    step(scheduler)
    step(scheduler, a=[1, 2, 3, 4])
    scheduler.reset_prefix_cache(reset_running_requests=True)
    resumed = step(scheduler)
    assert (resumed["tokens"], resumed["drafts"]) == ({"a": 10}, {})
    assert step(scheduler)["drafts"] == {"a": 3}


def test_a_request_may_expect_other_drafts_than_the_engine() -> None:
    scheduler = drafting(3)
    scheduler.submit(ask("none", 5, max_tokens=20, drafts=0), 0.0)
    scheduler.submit(ask("two", 5, max_tokens=20, drafts=2), 0.0)
    scheduler.submit(ask("usual", 5, max_tokens=20), 0.0)
    step(scheduler)
    assert step(scheduler)["drafts"] == {"two": 2, "usual": 3}


@pytest.mark.parametrize("expected", [100, 2**31 - 1, 2**40])
def test_a_request_that_expects_absurdly_many_drafts_does_no_harm(expected: int) -> None:
    """After one token 24 - 6 more may follow before its last; or it is refused at once."""
    scheduler = drafting(2)
    try:
        scheduler.submit(ask("a", 5, max_tokens=20, drafts=expected), 0.0)
    except RequestError:
        return
    step(scheduler)
    assert step(scheduler)["drafts"] == {"a": 18}


def test_the_budget_shortens_drafts() -> None:
    scheduler = drafting(3, max_num_batched_tokens=6, max_num_seqs=2)
    for name in "ab":
        scheduler.submit(ask(name, 3, max_tokens=20), 0.0)
    step(scheduler)
    plan = step(scheduler)
    assert (plan["tokens"], plan["drafts"]) == ({"a": 4, "b": 2}, {"a": 3, "b": 1})


def test_drafts_leave_the_budget_to_those_who_wait() -> None:
    """A waiting prompt is worth more than a guess."""
    scheduler = drafting(3, max_num_batched_tokens=8)
    scheduler.submit(ask("a", 3, max_tokens=20), 0.0)
    step(scheduler)
    scheduler.submit(ask("b", 12, max_tokens=20), 0.0)
    plans = [step(scheduler) for _ in range(3)]
    assert [(plan["tokens"], plan["drafts"]) for plan in plans] == [
        ({"a": 1, "b": 7}, {}),
        ({"a": 3, "b": 5}, {"a": 2}),
        ({"a": 4, "b": 4}, {"a": 3, "b": 3}),
    ]


def test_drafts_leave_the_blocks_to_those_who_wait() -> None:
    """The last free block goes to "b", and "a" computes without drafts."""
    scheduler = drafting(3, num_blocks=3)
    scheduler.submit(ask("a", 6, max_tokens=4), 0.0)
    step(scheduler)
    scheduler.submit(ask("b", 3, max_tokens=2), 0.0)
    plan = step(scheduler)
    assert (plan["tokens"], plan["drafts"]) == ({"a": 1, "b": 3}, {})


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_drafts_that_need_no_block_stay_when_others_find_none(order: str) -> None:
    """One has room for its draft; that of the other would need a block that is not there."""
    scheduler = drafting(1, num_blocks=3, max_num_seqs=2)
    for name in order:
        scheduler.submit(ask(name, 5 if name == "a" else 3, max_tokens=4), 0.0)
    step(scheduler)
    plan = step(scheduler)
    assert (plan["tokens"], plan["drafts"]) == ({"a": 2, "b": 1}, {"a": 1})


@pytest.mark.parametrize(("max_tokens", "drafts"), [(5, 3), (4, 2), (3, 1), (2, 0)])
def test_max_tokens_shorten_drafts(max_tokens: int, drafts: int) -> None:
    """After the first token `max_tokens - 1` may follow, one of which needs no draft."""
    scheduler = drafting(3)
    scheduler.submit(ask("a", 5, max_tokens=max_tokens), 0.0)
    step(scheduler)
    assert scheduler.plan(0.0).to_dict()["drafts"].get("a", 0) == drafts


def test_the_model_length_shortens_drafts() -> None:
    """Positions 0 to 6 are computed: the sample of position 6 is the eighth and last token."""
    scheduler = drafting(3, max_model_len=8)
    scheduler.submit(ask("a", 5, max_tokens=None), 0.0)
    step(scheduler)
    plan = scheduler.plan(0.0)
    assert plan.to_dict()["tokens"] == {"a": 2}
    told = commit(scheduler, plan, a=[1, 2])
    assert told["a"] == {"tokens": [1, 2], "finish": "length"}


def test_drafts_are_given_up_before_anybody_is_preempted() -> None:
    scheduler = drafting(3, num_blocks=4, max_num_seqs=2)
    for name in "ab":
        scheduler.submit(ask(name, 6, max_tokens=4), 0.0)  # 2 blocks each, with room for 2 more
    step(scheduler)
    plan = step(scheduler)
    assert (plan["tokens"], plan["drafts"], plan["preempted"]) == ({"a": 1, "b": 1}, {}, [])


def test_drafts_take_the_blocks_they_need_when_there_are_some() -> None:
    scheduler = drafting(3, num_blocks=6, max_num_seqs=2)
    for name in "ab":
        scheduler.submit(ask(name, 6, max_tokens=12), 0.0)
    step(scheduler)
    plan = step(scheduler)  # positions 6 to 9: a third block for each
    assert plan["drafts"] == {"a": 3, "b": 3}
    assert {name: len(blocks[0]) for name, blocks in plan["blocks"].items()} == {"a": 1, "b": 1}


def test_a_large_batch_drafts_nothing_under_the_adaptive_rule() -> None:
    scheduler = small(num_speculative_tokens=3, speculation_max_batch_tokens=4)
    scheduler.submit(ask("a", 3, max_tokens=20), 0.0)
    step(scheduler)
    assert step(scheduler, a=[1, 2])["drafts"] == {"a": 1}
    for name in "bcd":
        scheduler.submit(ask(name, 3, max_tokens=20), 0.0)
    step(scheduler)
    assert step(scheduler)["drafts"] == {}


def long(**settings: Any) -> Scheduler:
    """One sequence, after its prompt, that may draft up to three tokens for long."""
    scheduler = small(num_speculative_tokens=3, max_model_len=800, num_blocks=200, **settings)
    scheduler.submit(ask("a", 3, max_tokens=None), 0.0)
    step(scheduler)
    return scheduler


def tried(scheduler: Scheduler, steps: int) -> list[int]:
    """The drafts of so many steps, all of them rejected."""
    return [step(scheduler, a=[1])["drafts"].get("a", 0) for _ in range(steps)]


def test_a_sequence_whose_drafts_are_rejected_tries_again_later_each_time() -> None:
    scheduler = long()
    found = tried(scheduler, 200)
    at = [number for number, drafts in enumerate(found) if drafts]
    gaps = [after - before for before, after in pairwise(at)]
    assert gaps[-8:] == [1, 2, 4, 8, 16, 32, 64, 64]
    assert set(gaps[:-8]) == {1}, "at first they are likely enough to be right"


def test_a_proposer_that_finds_nothing_is_used_again_after_16_steps_at_most() -> None:
    scheduler = long()
    tries: list[int] = []
    for number in range(60):
        plan = scheduler.plan(0.0)
        if drafts := plan.to_dict()["drafts"].get("a", 0):
            tries.append(number)
            assert drafts == 3
        result = replace(StepResult.of(plan, {"a": [1]}), computed_drafts=np.zeros(1, np.int32))
        scheduler.commit(plan, result, 0.0)
    gaps = [after - before for before, after in pairwise(tries)]
    assert gaps[:6] == [1, 2, 4, 8, 16, 16]
    assert set(gaps[6:]) <= {16}


def test_drafts_that_are_right_bring_drafts_back() -> None:
    scheduler = long()
    tried(scheduler, 28)
    accepted: list[int] = []
    for _ in range(60):
        plan = scheduler.plan(0.0)
        accepted.append(plan.to_dict()["drafts"].get("a", 0))
        commit(scheduler, plan, a=range(1, 2 + accepted[-1]))
    assert accepted[0] == 0
    assert accepted[-30:] == [3] * 30


def test_between_tries_steps_are_steady() -> None:
    scheduler = long()
    tried(scheduler, 25)  # the next try comes in 11 steps
    rows = [scheduler.plan(0.0)]
    for _ in range(8):
        commit(scheduler, rows[-1])
        rows.append(scheduler.plan(0.0))
    assert all(plan.rows is rows[0].rows for plan in rows)
    commit(scheduler, rows[-1])
    assert any(tried(scheduler, 4))


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_steady_steps_behind_drafts_in_flight_change_no_token(depth: int) -> None:
    """Drafts are always wrong, so that most steps are steady ones."""
    settings = {"num_speculative_tokens": 3, "num_blocks": 80, "max_model_len": 200}
    scheduler = small(**settings)
    asked = [ask(name, 5 + number, max_tokens=150) for number, name in enumerate("ab")]
    for one in asked:
        scheduler.submit(one, 0.0)
    pipeline = Pipeline(scheduler, depth, accept=0.0).run()
    assert pipeline.got == {one.id: reference(one, 50, 200)[0] for one in asked}
    assert 0 < scheduler.stats.drafted < 100


def test_a_measurement_changes_how_many_there_are() -> None:
    scheduler = long()
    assert step(scheduler, a=[1, 2, 3, 4])["drafts"] == {"a": 3}
    dear: Points = ((1, 1.0), (2, 2.5), (3, 9.0))
    scheduler.measure_steps(StepTimes(dear, dear))
    assert step(scheduler, a=[1])["drafts"] == {}


def test_lookahead_slots_are_blocks_beyond_the_row() -> None:
    """A drafter writes two positions past the row, but none past the model length."""
    scheduler = small(lookahead_slots=2, max_model_len=12)
    scheduler.submit(ask("a", 7, max_tokens=5), 0.0)
    first = scheduler.plan(0.0).to_dict()
    assert len(first["blocks"]["a"][0]) == 3  # 7 positions and 2 more
    scheduler = small(lookahead_slots=2, max_model_len=8)
    scheduler.submit(ask("a", 6, max_tokens=2), 0.0)
    step(scheduler)
    assert "a" not in step(scheduler)["blocks"]  # position 6 and one more: the length is reached


def test_lookahead_slots_move_along_with_a_resident() -> None:
    """With two positions ahead the block of position 8 is taken when position 6 is computed."""
    scheduler = small(lookahead_slots=2)
    scheduler.submit(ask("a", 3, max_tokens=9), 0.0)
    held = [step(scheduler) and len(state(scheduler, "a")["blocks"][0]) for _ in range(6)]
    assert held == [2, 2, 2, 2, 3, 3]


def test_lookahead_slots_count_when_a_request_has_to_fit() -> None:
    with pytest.raises(ValueError, match="4 blocks"):
        small(num_blocks=3, lookahead_slots=2).submit(ask("a", 8, max_tokens=5), 0.0)
    small(num_blocks=3).submit(ask("a", 8, max_tokens=5), 0.0)


def test_one_that_returns_to_the_end_of_the_model_gets_no_block_behind_it() -> None:
    """The drafter would write further positions, but there are none."""
    scheduler = small(lookahead_slots=4, preemption_mode="swap", swap_space=16, num_blocks=32)
    scheduler.submit(ask("a", 61, max_tokens=3), 0.0)
    while len(sequence(scheduler, "a").tokens) and not scheduler.stats.sampled:
        step(scheduler)
    step(scheduler)
    preempt(scheduler, "a")
    finish_all(scheduler)
    assert scheduler.stats.swapped_in_blocks + scheduler.stats.swapped_out_blocks > 0
