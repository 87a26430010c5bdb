"""How sequences enter slots, leave them and end, and what they find and leave in the cache."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from paceline import Scheduler, StepResult
from paceline.core.events import AllBlocksCleared, BlockRemoved, BlockStored
from paceline.sched.state import SchedulerState
from paceline.sim.reference import reference
from tests.sched import constant_steps as steps
from tests.sched.support import (
    Pipeline,
    ask,
    commit,
    counters,
    findable,
    finish_all,
    preempt,
    sequence,
    small,
    state,
    step,
)

PROMPT = list(range(100, 113))  # 13 tokens: three full blocks and one more


def resident(scheduler: Scheduler, name: str) -> list[int]:
    return state(scheduler, name)["blocks"][0]


# -- sharing within a step ---------------------------------------------------


def test_equal_prompts_of_one_step_are_computed_once() -> None:
    scheduler = small()
    for name in "ab":
        scheduler.submit(ask(name, PROMPT), 0.0)
    assert step(scheduler)["tokens"] == {"a": 13, "b": 1}
    assert resident(scheduler, "a")[:3] == resident(scheduler, "b")[:3]
    assert resident(scheduler, "a")[3] != resident(scheduler, "b")[3]


def test_the_last_token_of_an_aligned_prompt_is_computed_by_each() -> None:
    """Twelve tokens are three blocks, but the third holds the token whose sample is wanted."""
    scheduler = small()
    for name in "ab":
        scheduler.submit(ask(name, PROMPT[:12]), 0.0)
    assert step(scheduler)["tokens"] == {"a": 12, "b": 4}
    assert resident(scheduler, "a")[:2] == resident(scheduler, "b")[:2]
    assert resident(scheduler, "a")[2] != resident(scheduler, "b")[2]


def test_three_requests_share_one_computation() -> None:
    scheduler = small()
    for name in "abc":
        scheduler.submit(ask(name, PROMPT), 0.0)
    plan = scheduler.plan(0.0)
    assert plan.to_dict()["tokens"] == {"a": 13, "b": 1, "c": 1}
    assert scheduler.snapshot()["free_blocks"] == 16 - 3 - 3
    assert [new.computed for new in plan.admitted] == [0, 12, 12]


def test_a_later_request_shares_as_far_as_it_is_alike() -> None:
    scheduler = small()
    scheduler.submit(ask("a", PROMPT), 0.0)
    scheduler.submit(ask("b", [*PROMPT[:6], 1, 2, 3, 4, 5, 6, 7]), 0.0)
    assert step(scheduler)["tokens"] == {"a": 13, "b": 9}


def test_a_chunk_is_shared_as_far_as_it_goes() -> None:
    """ "a" computes 6 of its 13 tokens in the first step: one block for "b" to find."""
    scheduler = small(long_prefill_token_threshold=6, max_num_batched_tokens=10, max_num_seqs=2)
    for name in "ab":
        scheduler.submit(ask(name, PROMPT), 0.0)
    assert step(scheduler)["tokens"] == {"a": 6, "b": 4}
    assert resident(scheduler, "a")[0] == resident(scheduler, "b")[0]
    assert resident(scheduler, "a")[1] != resident(scheduler, "b")[1]
    assert [step(scheduler)["tokens"] for _ in range(2)] == [{"a": 6, "b": 4}, {"a": 1, "b": 1}]


def test_every_chunk_is_findable_as_soon_as_it_is_planned() -> None:
    scheduler = small(max_num_batched_tokens=8, enable_kv_cache_events=True)
    scheduler.submit(ask("a", PROMPT), 0.0)
    found: list[tuple[int, int]] = []
    for _ in range(2):
        plan = scheduler.plan(0.0)
        found.append((findable(scheduler, PROMPT), len(scheduler.cache_events())))
        commit(scheduler, plan)
    assert found == [(8, 2), (12, 1)]


def test_a_request_that_waited_for_the_budget_finds_what_was_computed_meanwhile() -> None:
    scheduler = small(max_num_batched_tokens=8)
    for name in "ab":
        scheduler.submit(ask(name, PROMPT), 0.0)
    assert step(scheduler)["tokens"] == {"a": 8}
    assert step(scheduler)["tokens"] == {"a": 5, "b": 1}


def test_blocks_of_a_step_in_flight_are_shared_too() -> None:
    scheduler = small()
    scheduler.submit(ask("a", PROMPT), 0.0)
    first = scheduler.plan(0.0)
    scheduler.submit(ask("b", PROMPT), 0.0)
    second = scheduler.plan(0.0)
    assert second.to_dict()["tokens"] == {"a": 1, "b": 1}
    commit(scheduler, first)
    assert commit(scheduler, second) == {
        name: {"tokens": [9], "finish": None} for name in ("a", "b")
    }


@pytest.mark.parametrize("other", [{"cache_salt": "pepper"}, {"adapter": "lora"}])
def test_another_salt_or_adapter_never_shares(other: dict[str, Any]) -> None:
    scheduler = small()
    scheduler.submit(ask("a", PROMPT), 0.0)
    scheduler.submit(ask("b", PROMPT, **other), 0.0)
    scheduler.submit(ask("c", PROMPT, **other), 0.0)
    assert step(scheduler)["tokens"] == {"a": 13, "b": 13, "c": 1}
    assert not set(resident(scheduler, "a")) & set(resident(scheduler, "b"))


def test_without_a_prefix_cache_nobody_shares() -> None:
    scheduler = small(enable_prefix_caching=False)
    for name in "ab":
        scheduler.submit(ask(name, PROMPT), 0.0)
    assert step(scheduler)["tokens"] == {"a": 13, "b": 13}


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_shared_blocks_hold_what_everyone_expects(depth: int) -> None:
    """An oracle reads every cell that a row depends on, also within the step that fills it."""
    scheduler = small(max_num_batched_tokens=10)
    asked = [
        ask(name, PROMPT[:length], max_tokens=6)
        for name, length in {"a": 13, "b": 12, "c": 9, "d": 13}.items()
    ]
    for one in asked:
        scheduler.submit(one, 0.0)
    pipeline = Pipeline(scheduler, depth).run()
    assert pipeline.got == {one.id: reference(one, 50, 64)[0] for one in asked}
    assert scheduler.stats.prefix_hits > 0


# -- generated blocks --------------------------------------------------------


def generating(tokens: int) -> Scheduler:
    """A resident "a" that was asked with 4 tokens and has generated 0, 1, 2, ..."""
    scheduler = small()
    scheduler.submit(ask("a", PROMPT[:4], max_tokens=40), 0.0)
    for token in range(tokens):
        step(scheduler, a=[token])
    return scheduler


def test_generated_blocks_are_found_while_their_owner_still_runs() -> None:
    scheduler = generating(9)  # 12 positions computed: the prompt and two blocks of outputs
    scheduler.submit(ask("b", [*PROMPT[:4], *range(8), 77]), 0.0)
    assert step(scheduler)["tokens"] == {"a": 1, "b": 1}
    assert resident(scheduler, "a")[:3] == resident(scheduler, "b")[:3]
    assert state(scheduler, "b")["cached"] == 12


def test_a_generated_block_is_found_no_sooner_than_it_is_handed_out() -> None:
    """The eighth position is computed by the step that also admits "b", which may read it."""
    scheduler = generating(4)  # 8 tokens known, 7 positions computed
    scheduler.submit(ask("b", [*PROMPT[:4], *range(4), 77]), 0.0)
    assert step(scheduler)["tokens"] == {"a": 1, "b": 1}
    scheduler = generating(3)  # the eighth token is not known yet
    scheduler.submit(ask("b", [*PROMPT[:4], *range(4), 77]), 0.0)
    assert step(scheduler)["tokens"] == {"a": 1, "b": 5}


def test_other_outputs_are_not_found() -> None:
    scheduler = generating(9)
    scheduler.submit(ask("b", [*PROMPT[:4], 0, 1, 2, 99, 4, 5]), 0.0)
    assert step(scheduler)["tokens"] == {"a": 1, "b": 6}


def test_a_lookup_goes_from_one_generating_resident_to_the_next() -> None:
    """ "b" went on where "a" was, and "c" goes on where "b" is."""
    scheduler = generating(5)
    scheduler.submit(ask("b", [*PROMPT[:4], *range(4), 50], max_tokens=40), 0.0)
    for token in (51, 52, 53, 54):
        step(scheduler, b=[token])
    scheduler.submit(ask("c", [*PROMPT[:4], *range(4), 50, 51, 52, 53, 77]), 0.0)
    assert step(scheduler)["tokens"] == {"a": 1, "b": 1, "c": 1}


def test_a_generated_block_in_flight_is_forgotten_if_its_step_fails() -> None:
    scheduler = generating(4)
    scheduler.submit(ask("b", [*PROMPT[:4], *range(4), 77]), 0.0)
    plan = scheduler.plan(0.0)
    assert plan.to_dict()["tokens"] == {"a": 1, "b": 1}
    scheduler.retry(plan, 0.0)
    assert findable(scheduler, [*PROMPT[:4], *range(4)]) == 4
    assert step(scheduler)["tokens"] == {"a": 4, "b": 1}


def test_generated_blocks_are_found_after_the_end() -> None:
    scheduler = generating(9)
    scheduler.abort("a", 0.0)
    assert findable(scheduler, [*PROMPT[:4], *range(9)]) == 12


def test_only_confirmed_positions_are_found_after_an_end_in_flight() -> None:
    scheduler = generating(4)
    scheduler.plan(0.0)  # would compute the eighth position
    scheduler.abort("a", 0.0)
    assert findable(scheduler, [*PROMPT[:4], *range(4)]) == 4


# -- preemption --------------------------------------------------------------


def test_a_preempted_sequence_finds_its_own_blocks_again() -> None:
    """Outputs included: of 11 tokens known 10 were computed, which is two full blocks."""
    scheduler = small(num_blocks=5, max_num_seqs=2)
    scheduler.submit(ask("a", 3, max_tokens=5), 0.0)
    scheduler.submit(ask("b", 7, max_tokens=12), 0.0)
    for _ in range(4):
        step(scheduler)
    before = resident(scheduler, "b")
    scheduler.retry(scheduler.plan(0.0), 0.0)
    assert state(scheduler, "b")["state"] == "PREEMPTED"
    plan = scheduler.plan(0.0)
    (again,) = (new for new in plan.admitted if new.request.id == "b")
    assert (again.resumed, again.computed) == (True, 8)
    assert list(again.blocks[:2]) == before[:2]
    assert plan.to_dict()["tokens"]["b"] == 11 - 8


def test_a_victim_keeps_its_outputs_and_nothing_else() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 5, max_tokens=9), 0.0)
    step(scheduler, a=[1])
    step(scheduler, a=[2])
    preempt(scheduler, "a")
    scheduler.state.check()
    now = state(scheduler, "a")
    assert (now["state"], now["known"], now["planned"], now["computed"]) == ("PREEMPTED", 7, 0, 0)
    assert sequence(scheduler, "a").tokens[-2:].tolist() == [1, 2]
    assert scheduler.snapshot()["free_blocks"] == 16
    assert scheduler.stats.preemptions == 1


def test_a_resumed_sequence_is_told_as_resumed_with_all_its_tokens() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 5, max_tokens=9), 0.0)
    step(scheduler, a=[1])
    scheduler.reset_prefix_cache(reset_running_requests=True)
    plan = scheduler.plan(0.0)
    told = plan.to_dict()
    assert (told["new"], told["resumed"], told["preempted"]) == ([], ["a"], ["a"])
    assert plan.admitted[0].tokens.tolist() == [*ask("a", 5).prompt.tolist(), 1]
    assert plan.released == (0,)


def test_the_hit_of_its_first_admission_stays_with_a_request() -> None:
    scheduler = small()
    scheduler.submit(ask("a", PROMPT), 0.0)
    step(scheduler)
    scheduler.submit(ask("b", PROMPT), 0.0)
    step(scheduler)
    scheduler.retry(scheduler.plan(0.0), 0.0)
    step(scheduler)
    assert {name: state(scheduler, name)["cached"] for name in "ab"} == {"a": 0, "b": 12}


def test_work_in_flight_is_counted_oldest_first() -> None:
    scheduler = small()
    for name in "ab":
        scheduler.submit(ask(name, 5), 0.0)
    assert scheduler.state.in_flight() == []
    plan = scheduler.plan(0.0)
    assert scheduler.state.in_flight() == [0, 1]
    commit(scheduler, plan)
    assert scheduler.state.in_flight() == []


# -- what a preemption would cost --------------------------------------------


def test_the_loss_of_a_resident_is_what_it_computed_and_nobody_else_holds() -> None:
    scheduler = small()
    for name in "ab":
        scheduler.submit(ask(name, PROMPT), 0.0)
    scheduler.submit(ask("c", 7), 0.0)
    step(scheduler)
    assert [scheduler.state.loss(slot) for slot in (0, 1, 2)] == [13 - 12, 13 - 12, 7]


def test_uncached_is_what_a_waiting_sequence_would_have_to_compute() -> None:
    scheduler = small(max_num_seqs=1)
    for name in "ab":
        scheduler.submit(ask(name, PROMPT), 0.0)
    assert scheduler.state.uncached(sequence(scheduler, "b")) == 13
    step(scheduler)
    assert scheduler.state.uncached(sequence(scheduler, "b")) == 1


# -- the memory that is left -------------------------------------------------


def test_everything_is_free_after_the_last_end() -> None:
    scheduler = small()
    for name in "abcdef":
        scheduler.submit(ask(name, PROMPT[: 4 + ord(name) % 7]), 0.0)
    finish_all(scheduler)
    assert scheduler.snapshot()["free_blocks"] == 16


def test_a_taken_block_is_no_longer_found() -> None:
    scheduler = small(num_blocks=4)
    scheduler.submit(ask("a", PROMPT[:12], max_tokens=1), 0.0)
    finish_all(scheduler)
    assert findable(scheduler, PROMPT[:12]) == 12
    scheduler.submit(ask("b", 8, max_tokens=1), 0.0)
    step(scheduler)  # the blank block, and then the deepest of "a"
    assert findable(scheduler, PROMPT[:12]) == 8


def test_events_tell_what_became_findable_and_what_no_longer_is() -> None:
    scheduler = small(num_blocks=2, enable_kv_cache_events=True)
    scheduler.submit(ask("a", PROMPT[:8], max_tokens=1, adapter="lora"), 0.0)
    finish_all(scheduler)
    first, second = scheduler.cache_events()
    assert isinstance(first, BlockStored)
    assert isinstance(second, BlockStored)
    assert (first.parent, first.tokens, first.adapter) == (None, tuple(PROMPT[:4]), "lora")
    assert (second.parent, second.tokens) == (first.key, tuple(PROMPT[4:8]))
    scheduler.submit(ask("b", 3, max_tokens=1), 0.0)
    finish_all(scheduler)
    assert scheduler.cache_events() == [BlockRemoved(second.key)]
    assert scheduler.reset_prefix_cache()
    assert scheduler.cache_events() == [AllBlocksCleared()]
    assert scheduler.cache_events() == []


def test_no_events_are_kept_unless_somebody_wants_them() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 8), 0.0)
    finish_all(scheduler)
    assert scheduler.cache_events() == []


# -- the check ---------------------------------------------------------------


@pytest.mark.parametrize(
    "spoil",
    [
        lambda at: at.live.pop("b"),
        lambda at: at.live.update(c=at.live.pop("b")),
        lambda at: at.cache.pool.drop([at.cache.tables.blocks(0)[0]]),
        lambda at: at.queue.remove(at.live["b"]),
        lambda at: at.cache.release(0, at.live["a"]),
    ],
)
def test_the_check_notices_what_is_lost(spoil: Callable[[SchedulerState], object]) -> None:
    scheduler = small()
    scheduler.submit(ask("a", 5), 0.0)
    step(scheduler)
    scheduler.pause()
    scheduler.submit(ask("b", 5), 0.0)
    scheduler.check()
    spoil(scheduler.state)
    with pytest.raises(AssertionError):
        scheduler.check()


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


def test_what_comes_back_without_a_row_is_in_flight() -> None:
    swapping = {"preemption_mode": "swap", "swap_space": 32, "reserve_full_prompt": False}
    sizes = {"num_blocks": 8, "max_model_len": 24, "max_num_batched_tokens": 8, "max_num_seqs": 3}
    scheduler = steps.make(discipline="prefill_first", max_wait=0.0, **sizes, **swapping)
    for name, (prompt, most) in enumerate([(16, 5), (3, 5), (11, 1)]):
        scheduler.submit(steps.request(str(name), [name] * prompt, max_tokens=most), 0.0)
    for now in range(200):
        plan = scheduler.plan(float(now))
        rows = plan.rows.slot.tolist()
        if plan.swap_in and (back := [new for new in plan.admitted if new.slot not in rows]):
            assert back[0].slot in scheduler.state.in_flight()
            return
        result = StepResult.of(plan, {label: [5] for label in steps.sampling(plan)})
        scheduler.commit(plan, result, float(now))
    raise AssertionError("it never came back without a row")
