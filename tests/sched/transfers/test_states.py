"""States of residents: what plans copy, and what failures leave of it."""

from typing import Any

import pytest

from paceline import Plan, Scheduler, StepResult
from paceline.core.plan import NO_STATE_MOVES
from tests.sched.support import ask, commit, finish_all, small, step

TEXT = range(500, 540)


def stateful(**settings: Any) -> Scheduler:
    return small(**{"state_blocks": 2, "num_blocks": 64} | settings)


def kept(scheduler: Scheduler) -> list[int]:
    """Positions of the snapshots that can be found, in order."""
    snapshots = scheduler.state.cache.snapshots
    assert snapshots is not None
    return sorted(one.tokens for one in snapshots._listed.values())


def planned(scheduler: Scheduler, **tokens: Any) -> Plan:
    """The plan of one whole step."""
    plan = scheduler.plan(0.0)
    commit(scheduler, plan, **tokens)
    return plan


def test_a_plan_of_a_model_without_states_moves_none() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 9), 0.0)
    assert planned(scheduler).states is NO_STATE_MOVES
    assert planned(scheduler).states is NO_STATE_MOVES


def test_a_prompt_is_kept_with_a_copy_of_its_last_block() -> None:
    scheduler = stateful()
    scheduler.submit(ask("a", 10, max_tokens=3), 0.0)
    plan = planned(scheduler)
    assert plan.states.saves == ((0, (3, 4)),)
    assert plan.states.block_copies == ((2, 5),)
    assert planned(scheduler).states.empty, "decodes keep nothing"
    finish_all(scheduler)
    assert kept(scheduler) == [10, 12]
    assert scheduler.snapshot()["snapshots"] == 2


def test_a_slot_is_saved_forked_and_loaded_in_one_plan() -> None:
    scheduler = stateful(max_num_seqs=2)
    scheduler.submit(ask("a", TEXT[:10], max_tokens=2), 0.0)
    planned(scheduler)
    planned(scheduler)
    scheduler.submit(ask("b", [*TEXT[:10], 9, 1, 1]), 0.0)
    plan = scheduler.plan(0.0)
    (saved,), (loaded,) = plan.states.saves_before, plan.states.loads
    assert saved == loaded
    assert [new.computed for new in plan.admitted] == [11]
    ((source, target),) = plan.copies
    assert target == plan.admitted[0].blocks[2]
    assert source not in plan.admitted[0].blocks
    commit(scheduler, plan)
    finish_all(scheduler)


def test_forks_copy_the_state_of_their_leader() -> None:
    scheduler = stateful()
    scheduler.submit(ask("a", 9, n=3), 0.0)
    assert planned(scheduler).states.copies == ()
    assert planned(scheduler).states.copies == ((0, 2), (0, 1))
    finish_all(scheduler)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_lost_step_leaves_no_snapshot(depth: int) -> None:
    scheduler = stateful(max_num_batched_tokens=16)
    scheduler.submit(ask("a", TEXT, max_tokens=4), 0.0)
    commit(scheduler, scheduler.plan(0.0))
    assert kept(scheduler) == [16]
    plans = [scheduler.plan(0.0) for _ in range(depth)]
    assert kept(scheduler) == ([16], [16, 40])[depth - 1]
    scheduler.retry(plans[0], 0.0)
    scheduler.check()
    assert kept(scheduler) == [16]
    plan = scheduler.plan(0.0)
    assert [new.computed for new in plan.admitted] == [16]
    assert not plan.states.saves_before, "the state may be that of the lost step"
    commit(scheduler, plan)
    finish_all(scheduler)


def test_a_device_that_fails_takes_back_what_was_to_be_kept() -> None:
    scheduler = stateful()
    scheduler.submit(ask("a", TEXT[:8], max_tokens=2), 0.0)
    scheduler.submit(ask("b", 6, max_tokens=9), 0.0)
    planned(scheduler)
    planned(scheduler)
    assert kept(scheduler) == [6, 8, 9]
    plan = scheduler.plan(0.0)
    assert plan.states.saves_before
    scheduler.fail(plan, 0.0)
    assert kept(scheduler) == [6, 8]
    scheduler.check()


def test_an_abort_keeps_what_was_computed() -> None:
    scheduler = stateful()
    scheduler.submit(ask("a", 8, max_tokens=20), 0.0)
    plan = scheduler.plan(0.0)
    scheduler.abort("a", 0.0)
    after = scheduler.plan(0.0)
    assert kept(scheduler) == [8], "behind the prompt; the next plan need not save it again"
    assert after.empty
    commit(scheduler, plan)


def test_a_preempted_sequence_returns_where_it_was() -> None:
    scheduler = stateful()
    scheduler.submit(ask("a", 6, max_tokens=20), 0.0)
    for _ in range(4):
        planned(scheduler)
    scheduler.reset_prefix_cache()
    scheduler._recompute(0, "a test")
    plan = scheduler.plan(0.0)
    assert [new.computed for new in plan.admitted] == [9]
    assert plan.states.saves_before[0][1] == plan.states.loads[0][1]
    commit(scheduler, plan)


def test_a_reset_drops_what_was_to_be_kept() -> None:
    scheduler = stateful()
    scheduler.submit(ask("a", 6, max_tokens=2), 0.0)
    planned(scheduler)
    planned(scheduler)
    assert scheduler.reset_prefix_cache()
    assert kept(scheduler) == []
    assert scheduler.plan(0.0).empty


def fail_rows(scheduler: Scheduler, plan: Plan, name: str) -> None:
    """One row of a step comes to nothing, and none samples."""
    scheduler.commit(plan, StepResult.of(plan, {}, failed={name: "no numbers"}), 0.0)
    scheduler.check()


def test_a_failed_row_takes_its_snapshots_with_it() -> None:
    scheduler = stateful(max_num_batched_tokens=16)
    scheduler.submit(ask("a", TEXT, max_tokens=4), 0.0)
    planned(scheduler)
    assert kept(scheduler) == [16]
    planned(scheduler)
    fail_rows(scheduler, scheduler.plan(0.0), "a")
    assert kept(scheduler) == []
    scheduler.submit(ask("b", TEXT), 0.0)
    assert step(scheduler)["tokens"] == {"b": 16}
    assert scheduler.snapshot()["requests"]["b"]["cached"] == 0


def test_a_row_that_fails_behind_a_snapshot_takes_that_one_too() -> None:
    """The others that went on from it compute again, unless they have sampled."""
    scheduler = stateful(max_num_batched_tokens=8)
    scheduler.submit(ask("a", TEXT[:6], max_tokens=2), 0.0)
    planned(scheduler)
    planned(scheduler)
    scheduler.submit(ask("b", [*TEXT[:6], 9, 1], max_tokens=4), 0.0)
    scheduler.submit(ask("c", [*TEXT[:6], 9, 2, *TEXT], max_tokens=4), 0.0)
    plan = scheduler.plan(0.0)
    assert [new.computed for new in plan.admitted] == [7, 7]
    fail_rows(scheduler, plan, "b")
    assert 7 not in kept(scheduler)
    assert scheduler.snapshot()["requests"]["c"]["state"] == "PREEMPTED"
    finish_all(scheduler)


def test_a_failed_row_whose_sequence_has_left_keeps_nothing() -> None:
    scheduler = stateful(max_num_batched_tokens=16)
    scheduler.submit(ask("a", TEXT, max_tokens=4), 0.0)
    planned(scheduler)
    first, second = scheduler.plan(0.0), scheduler.plan(0.0)
    scheduler.abort("a", 0.0)
    after = scheduler.plan(0.0)
    assert 40 in kept(scheduler)
    commit(scheduler, first)
    fail_rows(scheduler, second, "a")
    assert 40 not in kept(scheduler)
    commit(scheduler, after)


def test_a_victim_rests_until_its_steps_are_committed_and_is_swapped_with_its_state() -> None:
    scheduler = stateful(num_blocks=8, preemption_mode="swap", swap_space=16, block_size=4)
    scheduler.submit(ask("a", 13, max_tokens=9), 0.0)
    scheduler.submit(ask("b", range(700, 712), max_tokens=9), 0.0)
    flight = [scheduler.plan(0.0)]
    while not scheduler.state.swapped:
        plan = scheduler.plan(0.0)
        if not plan.empty:
            flight.append(plan)
        if len(flight) > 1 or plan.empty:
            commit(scheduler, flight.pop(0))
    out = plan.states.swap_out
    assert [slot for slot, _ in out] == [1]
    known = len(scheduler.state.swapped.head(0.0).tokens)
    assert scheduler.state.swapping.tier.stored(scheduler.state.live["b"]).tokens == known - 1
    for one in flight:
        commit(scheduler, one)
    returned = None
    while returned is None:
        plan = planned(scheduler)
        returned = next((blocks for _, blocks in plan.states.swap_in), None)
    assert returned == out[0][1]
    finish_all(scheduler)
