"""How sequences leave their slots: preempted, aborted or at their end."""

from collections.abc import Callable

import pytest

from paceline import Scheduler
from paceline.testing.reference import reference
from tests.sched.support import (
    DISCIPLINES,
    PROMPT,
    Pipeline,
    answer,
    ask,
    blocks_of,
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


def test_every_block_of_the_pool_is_usable() -> None:
    """Edge case 14: There is no null block: a request may hold all of them, and a reset needs none
    left."""
    scheduler = small(num_blocks=3)
    scheduler.submit(ask("a", 12, max_tokens=1), 0.0)
    plan = scheduler.plan(0.0)
    assert sorted(plan.admitted[0].blocks) == [0, 1, 2]
    assert scheduler.usage == 1.0
    commit(scheduler, plan)
    assert (scheduler.usage, scheduler.reset_prefix_cache()) == (0.0, True)


def test_never_sealed_blocks_are_reused_first_and_the_deepest_before_its_parents() -> None:
    """Edge case 15: "a" leaves 0, 1, 2 with content and 3 without; 4 was never used."""
    scheduler = small(num_blocks=5)
    scheduler.submit(ask("a", 13, max_tokens=1), 0.0)
    assert scheduler.plan(0.0).admitted[0].blocks == (0, 1, 2, 3)
    scheduler.abort("a", 0.0)
    scheduler.submit(ask("b", 20, max_tokens=1), 0.0)
    assert scheduler.plan(0.0).admitted[0].blocks == (3, 4, 2, 1, 0)


def test_with_the_lru_order_used_blocks_queue_up_behind_unused_ones() -> None:
    """Edge case 15."""
    scheduler = small(num_blocks=5, free_order="lru")
    scheduler.submit(ask("a", 13, max_tokens=1), 0.0)
    scheduler.plan(0.0)
    scheduler.abort("a", 0.0)
    scheduler.submit(ask("b", 20, max_tokens=1), 0.0)
    assert scheduler.plan(0.0).admitted[0].blocks == (4, 3, 2, 1, 0)


def test_a_block_keeps_its_content_until_it_is_taken() -> None:
    """Edge case 17: Freeing forgets nothing; reuse forgets at once, also if the reuse is given
    up."""
    scheduler = small(num_blocks=3)
    scheduler.submit(ask("a", PROMPT[:12], max_tokens=1), 0.0)
    finish_all(scheduler)
    assert findable(scheduler, PROMPT[:12]) == 12
    scheduler.submit(ask("b", 9, max_tokens=1), 0.0)
    scheduler.retry(scheduler.plan(0.0), 0.0)
    assert findable(scheduler, PROMPT[:12]) == 0


def test_an_abort_between_plan_and_result_yields_nothing() -> None:
    """Edge case 27: Neither a token nor a second end."""
    scheduler = small()
    scheduler.submit(ask("a", 3, max_tokens=1), 0.0)
    plan = scheduler.plan(0.0)
    scheduler.abort("a", 0.0)
    outputs = scheduler.commit(plan, answer(plan), 0.0)
    assert (outputs.to_dict(), outputs.finished) == ({}, ())


def test_a_preemption_leaves_no_sample_in_flight_on_the_books() -> None:
    """Edge case 29: A resumed sequence wants all it knows, and not what it once expected."""
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


def test_an_abort_during_the_last_step_wins_over_the_length() -> None:
    """Edge case 52: It ended when it was aborted; what comes afterwards changes nothing."""
    scheduler = small()
    scheduler.submit(ask("a", 3, max_tokens=2), 0.0)
    step(scheduler)
    last = scheduler.plan(0.0)
    scheduler.abort("a", 0.0)
    assert commit(scheduler, last) == {}
    assert state(scheduler, "a")["state"] == "FINISHED_ABORTED"


def test_an_abort_that_comes_twice_is_one() -> None:
    """Edge case 53: The second says that there was nothing to do."""
    scheduler = small()
    scheduler.submit(ask("a", 3), 0.0)
    assert [scheduler.abort("a", 0.0) for _ in range(3)] == [True, False, False]
    assert scheduler.stats.finished == 1
    assert scheduler.plan(0.0).finished == ("a",)


@DISCIPLINES
def test_several_victims_of_one_step_keep_their_order(discipline: str) -> None:
    """Edge case 64: The newest goes first and ends up behind the others that went."""
    scheduler = small(num_blocks=4, max_num_seqs=4, discipline=discipline)
    for name in "abcd":
        scheduler.submit(ask(name, 4, max_tokens=8), 0.0)
    step(scheduler)
    scheduler.submit(ask("e", 3), 0.0)
    assert step(scheduler)["preempted"] == ["d", "c"]
    assert scheduler.snapshot()["waiting"] == ["c", "d", "e"]


def test_a_preempted_sequence_finds_its_own_blocks_again() -> None:
    """Outputs included: of 11 tokens known 10 were computed, which is two full blocks."""
    scheduler = small(num_blocks=5, max_num_seqs=2)
    scheduler.submit(ask("a", 3, max_tokens=5), 0.0)
    scheduler.submit(ask("b", 7, max_tokens=12), 0.0)
    for _ in range(4):
        step(scheduler)
    before = blocks_of(scheduler, "b")
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


def waiting(scheduler: Scheduler) -> None:
    scheduler.submit(ask("a", PROMPT), 0.0)


def parked(scheduler: Scheduler) -> None:
    scheduler.submit(ask("a", PROMPT), 0.0, parked="grammar")


def prefilling(scheduler: Scheduler) -> None:
    scheduler.submit(ask("a", PROMPT), 0.0)
    step(scheduler)
    assert counters(scheduler, "a")[1] < 13


def decoding(scheduler: Scheduler) -> None:
    scheduler.submit(ask("a", PROMPT, max_tokens=9), 0.0)
    for _ in range(4):
        step(scheduler)
    assert counters(scheduler, "a") == (13 + 3, 15, 15)


def in_flight(scheduler: Scheduler) -> None:
    decoding(scheduler)
    scheduler.plan(0.0)
    scheduler.plan(0.0)


def preempted(scheduler: Scheduler) -> None:
    decoding(scheduler)
    scheduler.reset_prefix_cache(reset_running_requests=True)


def preempted_and_parked(scheduler: Scheduler) -> None:
    preempted(scheduler)
    assert scheduler.park("a", "grammar", 0.0)


PLACES = [waiting, parked, prefilling, decoding, in_flight, preempted, preempted_and_parked]


@pytest.mark.parametrize("bring", PLACES)
def test_an_abort_works_everywhere_once_and_frees_everything(
    bring: Callable[[Scheduler], None],
) -> None:
    scheduler = small(max_num_batched_tokens=8)
    bring(scheduler)
    assert scheduler.abort("a", 0.0)
    scheduler.check()
    assert not scheduler.abort("a", 0.0)
    taken = scheduler.snapshot()
    assert (taken["waiting"], taken["parked"], taken["running"]) == ([], {}, [])
    assert taken["free_blocks"] == 16
    assert taken["requests"]["a"]["state"] == "FINISHED_ABORTED"
    assert (scheduler.unfinished, scheduler.stats.finished) == (0, 1)
    assert scheduler.plan(0.0).to_dict()["finished"] == ["a"]
    assert not scheduler.abort("a", 0.0)
    assert scheduler.plan(0.0).to_dict()["finished"] == []


def test_an_abort_of_nobody_is_no_fault() -> None:
    assert not small().abort("nobody", 0.0)


def test_an_abort_in_flight_yields_no_token() -> None:
    scheduler = small()
    for name in "ab":
        scheduler.submit(ask(name, 5), 0.0)
    plans = [scheduler.plan(0.0), scheduler.plan(0.0)]
    scheduler.abort("a", 0.0)
    for plan in plans:
        assert commit(scheduler, plan) == {"b": {"tokens": [9], "finish": None}}


def test_a_scheduler_with_work_in_flight_is_not_idle_though_nobody_is_here() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 5), 0.0)
    plan = scheduler.plan(0.0)
    scheduler.abort("a", 0.0)
    assert (scheduler.unfinished, scheduler.idle) == (0, False)
    commit(scheduler, plan)
    assert scheduler.idle


def test_blocks_of_an_aborted_request_may_be_taken_while_its_step_still_runs() -> None:
    """The device runs steps in order, so the next owner writes after the last one."""
    scheduler = small(num_blocks=4)
    pipeline = Pipeline(scheduler, depth=2)
    scheduler.submit(ask("a", 13, max_tokens=4), 0.0)
    pipeline.launch()
    scheduler.abort("a", 0.0)
    other = ask("b", 14, max_tokens=3)
    scheduler.submit(other, 0.0)
    assert len(pipeline.launch().admitted[0].blocks) == 4
    assert pipeline.run().got == {"b": reference(other, 50, 64)[0]}
