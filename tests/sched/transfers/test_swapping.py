"""Preemption that keeps the work: when it is worth it, what moves, and how it comes back."""

from typing import Any, ClassVar

import pytest

from paceline import ConfigError, Request, Scheduler
from paceline.core.request import Sequence
from paceline.sched.policy import Policy
from paceline.sched.transfers.swapping import Rates
from paceline.testing.reference import reference
from tests.sched import constant_steps as steps
from tests.sched.support import (
    VOCAB,
    Pipeline,
    answer,
    ask,
    commit,
    crowded,
    findable,
    finish_all,
    gate,
    preempt,
    sequence,
    small,
    state,
    step,
)

FAST_COPIES, FAST_COMPUTE = Rates(1e-9, 1e9), Rates(1e9, 1e-9)


def swapping(**settings: Any) -> Scheduler:
    return small(**{"preemption_mode": "swap", "swap_space": 16} | settings)


def wanted(scheduler: Scheduler, name: str) -> bool:
    at = scheduler.state
    return at.swapping.wanted(at.group(sequence(scheduler, name)))


def begun(scheduler: Scheduler, **prompts: Any) -> Scheduler:
    """With residents that have computed their prompts."""
    for name, prompt in prompts.items():
        scheduler.submit(ask(name, prompt, max_tokens=9), 0.0)
    step(scheduler)
    return scheduler


# -- the choice --------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "space", "expected"),
    [
        ("recompute", 0, False),
        ("recompute", 8, False),
        ("swap", 8, True),
        ("auto", 8, True),
        ("auto", 0, False),
    ],
)
def test_the_mode_decides(mode: str, space: int, expected: bool) -> None:
    scheduler = begun(small(preemption_mode=mode, swap_space=space), a=9)
    scheduler.measure(FAST_COPIES)
    assert wanted(scheduler, "a") == expected


def test_auto_takes_what_costs_less() -> None:
    scheduler = begun(swapping(preemption_mode="auto"), a=9)
    for rates, expected in ((FAST_COPIES, True), (FAST_COMPUTE, False)):
        scheduler.measure(rates)
        assert wanted(scheduler, "a") == expected


def test_auto_begins_with_the_rates_of_the_settings() -> None:
    for recompute, swap, expected in ((1.0, 1e6, True), (1e6, 1.0, False)):
        rates = {"recompute_tokens_per_s": recompute, "swap_blocks_per_s": swap}
        scheduler = begun(swapping(preemption_mode="auto", **rates), a=9)
        assert wanted(scheduler, "a") == expected


def test_swap_does_not_ask_what_it_costs() -> None:
    scheduler = begun(swapping(), a=9)
    scheduler.measure(FAST_COMPUTE)
    assert wanted(scheduler, "a")


@pytest.mark.parametrize(("blocks_per_s", "expected"), [(6.1, True), (6.0, False), (5.9, False)])
def test_copies_there_and_back_are_weighed_against_the_tokens(
    blocks_per_s: float, expected: bool
) -> None:
    """Nine tokens in three blocks: six copies, or nine positions."""
    scheduler = begun(swapping(preemption_mode="auto"), a=9)
    scheduler.measure(Rates(9.0, blocks_per_s))
    assert wanted(scheduler, "a") == expected


def test_what_others_hold_is_not_computed_again() -> None:
    """All but a block of "b" would be found; it is one block, however many positions it has."""
    scheduler = begun(swapping(preemption_mode="auto"), a=range(9), b=range(9))
    scheduler.measure(Rates(4.0, 6.1))  # 1 s against 6 copies
    assert wanted(scheduler, "b")
    scheduler.measure(Rates(4.0, 5.9))
    assert not wanted(scheduler, "b")


def test_a_block_that_is_hardly_filled_costs_what_is_in_it() -> None:
    """One position of one block: 2 copies, or the 1 position of which all is to keep."""
    scheduler = begun(swapping(preemption_mode="auto"), a=1)
    scheduler.measure(Rates(1.0, 2.1))
    assert wanted(scheduler, "a")
    scheduler.measure(Rates(1.0, 1.9))
    assert not wanted(scheduler, "a")


def test_what_is_on_the_host_already_is_not_copied_there_again() -> None:
    scheduler = begun(swapping(preemption_mode="auto", num_blocks=32), a=range(9), b=range(9))
    scheduler.measure(FAST_COPIES)
    preempt(scheduler, "b")
    scheduler.pause()
    step(scheduler)
    assert state(scheduler, "b")["state"] == "SWAPPED"
    scheduler.measure(Rates(10.0, 2.1))  # 10 positions against one block there and back
    assert wanted(scheduler, "a")
    scheduler.measure(Rates(10.0, 1.9))
    assert not wanted(scheduler, "a")


def test_one_that_has_computed_nothing_has_nothing_to_keep() -> None:
    scheduler = swapping()
    scheduler.submit(ask("a", 9), 0.0)
    plan = scheduler.plan(0.0)
    assert not wanted(scheduler, "a")
    commit(scheduler, plan)
    assert wanted(scheduler, "a")


def test_a_prompt_in_pieces_is_worth_what_is_there() -> None:
    scheduler = begun(swapping(max_num_batched_tokens=6), a=9)
    at = scheduler.state
    preempt(scheduler, "a")
    assert at.swapping.tier.stored(sequence(scheduler, "a")).tokens == 6


def test_the_last_known_token_is_computed_again_to_sample_from() -> None:
    scheduler = begun(swapping(), a=8)
    preempt(scheduler, "a")
    assert scheduler.state.swapping.tier.stored(sequence(scheduler, "a")).tokens == 8


def test_measured_rates_are_kept() -> None:
    scheduler = swapping()
    scheduler.measure(Rates(3.0, 4.0))
    assert scheduler.state.swapping.rates == Rates(3.0, 4.0)


@pytest.mark.parametrize("rates", [(0.0, 1.0), (1.0, 0.0), (-1.0, 1.0), (1.0, float("nan"))])
def test_rates_that_make_no_sense_are_refused(rates: tuple[float, float]) -> None:
    with pytest.raises(ConfigError, match="rates of recomputation and of swapping are positive"):
        Rates(*rates)


# -- out ---------------------------------------------------------------------


def test_a_victim_goes_to_the_host() -> None:
    scheduler = crowded(preemption_mode="swap", swap_space=4)
    (block,) = state(scheduler, "b")["blocks"][0]
    plan = scheduler.plan(0.0).to_dict()
    assert (plan["preempted"], plan["swap_out"]) == (["b"], [[block, 0]])
    told = scheduler.snapshot()
    assert (told["swapped"], told["waiting"], told["running"]) == (["b"], [], ["a"])
    assert told["host_free_blocks"] == 3
    assert state(scheduler, "b")["state"] == "SWAPPED"
    assert scheduler.stats.swapped_out_blocks == 1
    assert "swapped out: 1 block copied to the host." in scheduler.explain("b")
    assert gate(scheduler) == ("preempted", "b", 1)


def test_its_blocks_are_free_when_the_step_that_copies_them_has_run() -> None:
    """Until then "a" cannot have them, and the step does nothing but copy."""
    scheduler = crowded(preemption_mode="swap", swap_space=4, num_blocks=2)
    plan = scheduler.plan(0.0)
    assert (len(plan.rows), plan.swap_out) == (0, ((1, 0),))
    assert scheduler.snapshot()["free_blocks"] == 0
    assert not scheduler.idle
    assert scheduler.plan(0.0).empty  # it is still being copied
    commit(scheduler, plan)
    assert scheduler.snapshot()["free_blocks"] == 1
    assert step(scheduler)["blocks"] == {"a": [[1]]}


def test_one_that_needs_no_block_goes_on_while_another_waits_for_a_fence() -> None:
    scheduler = swapping(num_blocks=3, max_num_seqs=3)
    for name, prompt in (("a", 4), ("b", 2), ("c", 4)):
        scheduler.submit(ask(name, prompt, max_tokens=5), 0.0)
    step(scheduler)
    plan = step(scheduler)
    assert (plan["preempted"], plan["tokens"]) == (["c"], {"b": 1})
    assert step(scheduler)["tokens"] == {"a": 1, "b": 1}


def test_without_room_on_the_host_it_computes_again_and_the_journal_says_why() -> None:
    scheduler = swapping(num_blocks=5, max_num_seqs=2, swap_space=1)
    for name in "ab":
        scheduler.submit(ask(name, 8, max_tokens=5), 0.0)
    step(scheduler)
    plan = step(scheduler)
    assert (plan["preempted"], plan["swap_out"], plan["tokens"]) == (["b"], [], {"a": 1})
    assert state(scheduler, "b")["state"] == "PREEMPTED"
    assert scheduler.snapshot()["waiting"] == ["b"]
    assert "not kept on the host: no room on the host." in scheduler.explain("b")
    assert (scheduler.stats.swaps_refused, scheduler.stats.swapped_out_blocks) == (1, 0)
    assert len(finish_all(scheduler)["b"]) == 4


def test_one_with_nothing_to_keep_is_no_swap_that_was_refused() -> None:
    """Its prompt is still in flight when it gives way."""
    scheduler = swapping(num_blocks=4, max_num_seqs=2)
    scheduler.submit(ask("a", 8, max_tokens=8), 0.0)
    scheduler.submit(ask("b", 4, max_tokens=8), 0.0)
    plans = [scheduler.plan(0.0), scheduler.plan(0.0)]
    assert (plans[1].preempted, plans[1].swap_out) == (("b",), ())
    assert state(scheduler, "b")["state"] == "PREEMPTED"
    assert scheduler.stats.swaps_refused == 0


def test_shared_blocks_are_copied_once() -> None:
    """Two of one prompt give way in one step."""
    scheduler = swapping(num_blocks=7, max_num_seqs=3)
    scheduler.submit(ask("a", 11, max_tokens=9), 0.0)
    for name in "bc":
        scheduler.submit(ask(name, range(11), max_tokens=9), 0.0)
    step(scheduler, b=[1], c=[2])  # 3 blocks, 3, and 1: two of the second are shared
    plans = [step(scheduler) for _ in range(2)]
    assert [plan["preempted"] for plan in plans] == [[], ["c", "b"]]
    assert len(plans[1]["swap_out"]) == 2 + 1 + 1
    assert len({target for _, target in plans[1]["swap_out"]}) == 4
    assert "swapped out: 3 blocks copied to the host." in scheduler.explain("c")
    assert "swapped out: 1 block copied to the host." in scheduler.explain("b")


def test_outputs_are_named_before_they_go() -> None:
    """So that blocks of equal outputs are one on the host."""
    scheduler = swapping()
    for name in "ab":
        scheduler.submit(ask(name, range(3), max_tokens=9), 0.0)
    for _ in range(3):
        step(scheduler)
    for name in "ab":
        preempt(scheduler, name)
    assert scheduler.plan(0.0).to_dict()["swap_out"] == [[0, 0], [2, 1], [3, 2]]


def test_one_that_is_displaced_on_arrival_computes_again() -> None:
    """Its blocks are wanted at once, and a copy would hold them up."""
    scheduler = swapping(policy="priority", preempt_on_arrival=True, max_num_seqs=1)
    scheduler.submit(ask("a", 4, max_tokens=9, priority=5), 0.0)
    step(scheduler)
    scheduler.submit(ask("good", 4, priority=1), 0.0)
    plan = step(scheduler)
    assert (plan["preempted"], plan["new"], plan["swap_out"]) == (["a"], ["good"], [])


# -- in ----------------------------------------------------------------------


def test_it_comes_back_with_what_it_had_and_says_so() -> None:
    scheduler = crowded(preemption_mode="swap", swap_space=4)
    plans = [step(scheduler) for _ in range(6)]
    back = next(plan for plan in plans if plan["resumed"])
    assert (back["resumed"], back["tokens"]) == (["b"], {"b": 1})
    assert "swapped in at step" in scheduler.explain("b")
    assert scheduler.snapshot()["host_free_blocks"] == 4
    assert len(finish_all(scheduler).get("b", [])) + 2 == 4


def test_content_that_is_still_on_the_device_is_not_copied_back() -> None:
    scheduler = crowded(preemption_mode="swap", swap_space=4)
    plans = [step(scheduler) for _ in range(6)]
    assert [plan["swap_in"] for plan in plans] == [[]] * 6
    assert scheduler.stats.swapped_in_blocks == 0


def test_content_that_was_overwritten_meanwhile_is() -> None:
    scheduler = crowded(preemption_mode="swap", swap_space=4, enable_prefix_caching=False)
    plans = [step(scheduler) for _ in range(6)]
    ((source, target),) = next(plan["swap_in"] for plan in plans if plan["swap_in"])
    back = next(plan for plan in plans if plan["resumed"])
    assert (source, back["blocks"]["b"][0][0]) == (0, target)
    assert scheduler.stats.swapped_in_blocks == 1


@pytest.mark.parametrize("discipline", ["unified", "prefill_first"])
def test_it_comes_before_those_who_wait(discipline: str) -> None:
    scheduler = crowded(preemption_mode="swap", swap_space=4, discipline=discipline)
    scheduler.submit(ask("c", 1, max_tokens=1), 0.0)
    step(scheduler)
    assert scheduler.snapshot()["swapped"] == ["b"]
    entered: list[str] = []
    for _ in range(8):
        plan = step(scheduler)
        entered += plan["resumed"] + plan["new"]
    assert entered == ["b", "c"]


def test_nobody_returns_in_the_step_in_which_somebody_left() -> None:
    scheduler = swapping(num_blocks=7, enable_prefix_caching=False)
    for number, name in enumerate("abcd"):
        scheduler.submit(ask(name, 4 + number, max_tokens=12), 0.0)
    pipeline = Pipeline(scheduler, 1).run()
    assert sum(bool(plan.swap_out) for plan in pipeline.plans) > 2
    assert any(plan.swap_in for plan in pipeline.plans)
    assert not any(plan.swap_in and plan.swap_out for plan in pipeline.plans)


def test_it_waits_for_the_copy_that_takes_it_to_the_host() -> None:
    """The step is in flight, and "a" has ended and left all the room there could be."""
    scheduler = crowded(preemption_mode="swap", swap_space=4)
    plan = scheduler.plan(0.0)
    scheduler.abort("a", 0.0)
    assert scheduler.plan(0.0).to_dict()["resumed"] == []
    assert gate(scheduler) == ("swapping", "b", 0)
    assert "for its copy to the host" in scheduler.why()["b"]
    commit(scheduler, plan)
    assert step(scheduler)["resumed"] == ["b"]


@pytest.mark.parametrize("reason", ["seqs", "blocks"])
def test_what_keeps_it_out_is_told(reason: str) -> None:
    scheduler = swapping(num_blocks=3, max_num_seqs=2)
    for name in "ab":
        scheduler.submit(ask(name, 4, max_tokens=5), 0.0)
    step(scheduler)
    step(scheduler)
    if reason == "seqs":
        at = scheduler.state
        kept = [at.table.reserve() for _ in range(at.table.vacant)]
        step(scheduler)
        assert gate(scheduler) == ("seqs", "b", 1)
        for slot in kept:
            at.table.give_back(slot)
    else:
        step(scheduler)
        assert gate(scheduler) == ("blocks", "b", 1)  # two for five tokens, and one is free


def test_one_whose_content_is_all_on_the_host_already_leaves_in_an_empty_step() -> None:
    """ "b" went before it with the same content. Nothing runs, and so nothing is waited for."""
    scheduler = begun(swapping(), a=range(8), b=range(8))
    pool = scheduler.state.cache.pool
    taken = pool.take(pool.free)
    plan = scheduler.plan(0.0)
    assert (plan.preempted, len(plan.swap_out)) == (("b",), 2)
    scheduler.commit(plan, answer(plan), 0.0)
    taken += pool.take(pool.free)
    plan = scheduler.plan(0.0)
    assert (plan.preempted, plan.swap_out, plan.empty) == (("a",), (), True)
    assert scheduler.snapshot()["swapped"] == ["a", "b"]
    pool.drop(taken)
    scheduler.check()
    assert step(scheduler)["resumed"] == ["a", "b"]
    assert {name: len(got) for name, got in finish_all(scheduler).items()} == {"a": 7, "b": 7}
    assert scheduler.snapshot()["host_free_blocks"] == 16


# -- trouble -----------------------------------------------------------------


def test_an_abort_frees_what_was_kept() -> None:
    scheduler = crowded(preemption_mode="swap", swap_space=4)
    plan = scheduler.plan(0.0)
    assert scheduler.abort("b", 0.0)
    scheduler.check()
    assert state(scheduler, "b")["state"] == "FINISHED_ABORTED"
    commit(scheduler, plan)
    assert scheduler.snapshot()["host_free_blocks"] == 4
    assert scheduler.snapshot()["swapped"] == []


@pytest.mark.parametrize("give_up", ["retry", "fail"])
def test_a_copy_that_did_not_come_about_is_computed_again(give_up: str) -> None:
    scheduler = crowded(preemption_mode="swap", swap_space=4)
    plan = scheduler.plan(0.0)
    getattr(scheduler, give_up)(plan, 0.0)
    scheduler.check()
    assert state(scheduler, "b")["state"] == "PREEMPTED"
    assert "not kept on the host: the copy did not come about." in scheduler.explain("b")
    assert scheduler.snapshot()["host_free_blocks"] == 4
    assert len(finish_all(scheduler)["b"]) == 4


def test_one_that_ended_before_its_copy_failed_does_not_come_back() -> None:
    scheduler = crowded(preemption_mode="swap", swap_space=4)
    plan = scheduler.plan(0.0)
    scheduler.abort("b", 0.0)
    scheduler.retry(plan, 0.0)
    scheduler.check()
    assert scheduler.snapshot()["waiting"] == ["a"]
    assert state(scheduler, "b")["state"] == "FINISHED_ABORTED"
    assert scheduler.snapshot()["host_free_blocks"] == 4


def test_what_had_arrived_before_is_kept_when_a_later_step_fails() -> None:
    scheduler = crowded(preemption_mode="swap", swap_space=4)
    step(scheduler)
    scheduler.retry(scheduler.plan(0.0), 0.0)
    assert scheduler.snapshot()["swapped"] == ["b"]
    scheduler.check()


def test_a_return_whose_step_fails_is_computed_again() -> None:
    scheduler = crowded(preemption_mode="swap", swap_space=4, enable_prefix_caching=False)
    while not (plan := scheduler.plan(0.0)).swap_in:
        commit(scheduler, plan)
    scheduler.retry(plan, 0.0)
    scheduler.check()
    assert state(scheduler, "b")["state"] == "PREEMPTED"
    assert scheduler.snapshot()["host_free_blocks"] == 4
    assert scheduler.plan(0.0).admitted[0].computed == 0


def test_a_reset_forgets_what_is_on_the_host_too() -> None:
    scheduler = crowded(preemption_mode="swap", swap_space=4)
    step(scheduler)
    assert not scheduler.reset_prefix_cache()
    assert scheduler.snapshot()["swapped"] == ["b"]
    assert scheduler.reset_prefix_cache(reset_running_requests=True)
    scheduler.check()
    assert scheduler.snapshot()["swapped"] == []
    assert findable(scheduler, ask("b", 4).prompt.tolist()) == 0
    assert len(finish_all(scheduler)["b"]) == 4


def test_draining_lets_the_swapped_run_to_their_end() -> None:
    scheduler = crowded(preemption_mode="swap", swap_space=4)
    step(scheduler)
    scheduler.drain()
    assert len(finish_all(scheduler)["b"]) == 4


def test_a_pause_keeps_the_swapped_out_too() -> None:
    scheduler = crowded(preemption_mode="swap", swap_space=4)
    step(scheduler)
    scheduler.abort("a", 0.0)
    scheduler.pause()
    assert step(scheduler)["resumed"] == []
    assert gate(scheduler) == ("paused", "b", 0)
    scheduler.resume()
    assert step(scheduler)["resumed"] == ["b"]


def test_the_swapped_count_as_waiting_for_the_bound_of_the_queue() -> None:
    scheduler = crowded(preemption_mode="swap", swap_space=4, max_num_queued_reqs=2)
    step(scheduler)
    scheduler.submit(ask("c", 2), 0.0)
    with pytest.raises(ValueError, match="2 requests are already waiting"):
        scheduler.submit(ask("d", 2), 0.0)


# -- the same outputs --------------------------------------------------------


def outputs(asked: list[Request], depth: int, **settings: Any) -> Pipeline:
    scheduler = swapping(num_blocks=7, max_num_batched_tokens=9, **settings)
    for one in asked:
        scheduler.submit(one, 0.0)
    return Pipeline(scheduler, depth).run()


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("discipline", ["unified", "prefill_first"])
def test_output_is_the_same_with_swapping_as_without(
    depth: int, caching: bool, discipline: str
) -> None:
    asked = [ask(name, 4 + number, max_tokens=12) for number, name in enumerate("abcd")]
    found = outputs(asked, depth, enable_prefix_caching=caching, discipline=discipline)
    assert found.got == {one.id: reference(one, VOCAB, 64)[0] for one in asked}
    stats = found.scheduler.stats
    assert stats.swapped_out_blocks > 0
    assert caching or stats.swapped_in_blocks == stats.swapped_out_blocks
    assert found.scheduler.snapshot()["host_free_blocks"] == 16


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("space", [1, 2, 3])
def test_and_with_hardly_any_room(depth: int, space: int) -> None:
    asked = [ask(name, 4 + number, max_tokens=12) for number, name in enumerate("abcd")]
    found = outputs(asked, depth, swap_space=space, enable_prefix_caching=False)
    assert found.got == {one.id: reference(one, VOCAB, 64)[0] for one in asked}
    assert found.scheduler.stats.swaps_refused > 0


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_and_with_drafts(depth: int) -> None:
    asked = [ask(name, 4 + number, max_tokens=12) for number, name in enumerate("abcd")]
    found = outputs(asked, depth, num_speculative_tokens=3, speculation="fixed")
    assert found.got == {one.id: reference(one, VOCAB, 64)[0] for one in asked}
    assert found.scheduler.stats.swapped_out_blocks > 0


def test_one_that_leaves_in_an_empty_step_waits_for_the_copies_in_flight() -> None:
    """ "b" goes before it with the same content, which is not on the host yet."""
    scheduler = begun(swapping(), a=range(8), b=range(8))
    pool = scheduler.state.cache.pool
    taken = pool.take(pool.free)
    first = scheduler.plan(0.0)
    assert (first.preempted, len(first.swap_out)) == (("b",), 2)
    copied = [device for device, _ in first.swap_out]
    pool.hold(copied)
    second = scheduler.plan(0.0)
    assert (second.preempted, second.empty) == (("a",), True)
    pool.drop(copied)
    pool.drop(taken)
    assert scheduler.plan(0.0).empty
    assert gate(scheduler) == ("swapping", "a", 0)
    scheduler.commit(first, answer(first), 0.0)
    scheduler.check()
    assert step(scheduler)["resumed"] == ["a", "b"]


def test_a_reset_that_cannot_be_leaves_the_host_as_it_is() -> None:
    scheduler = small(preemption_mode="swap", swap_space=16)
    scheduler.submit(ask("a", 9, 20), 0.0)
    for _ in range(3):
        step(scheduler)
    preempt(scheduler, "a")
    for _ in range(3):
        step(scheduler)
    kept = scheduler.state.cache.host.cached
    assert kept
    assert not scheduler.reset_prefix_cache()
    assert scheduler.state.cache.host.cached == kept


def test_one_whose_copy_is_lost_waits_in_front() -> None:
    swapping = {"preemption_mode": "swap", "swap_space": 16, "policy": "priority"}
    scheduler = steps.make(num_blocks=6, max_model_len=24, max_num_seqs=2, **swapping)
    scheduler.submit(steps.request("a", [1] * 10, max_tokens=10, arrival=4.0), 0.0)
    scheduler.submit(steps.request("b", [2] * 10, max_tokens=10, arrival=5.0), 0.0)
    steps.step(scheduler)
    scheduler.submit(steps.request("c", [3] * 4, max_tokens=2, arrival=1.0), 0.0)
    while not (plan := scheduler.plan(0.0)).swap_out:
        steps.commit(scheduler, plan)
    assert scheduler.snapshot()["swapped"] == ["b"]
    scheduler.retry(plan, 0.0)
    assert scheduler.snapshot()["waiting"] == ["b", "c"]


def test_several_victims_that_go_to_the_host_keep_their_order() -> None:
    """Edge case 64: And come back in it, before those who wait."""
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


def test_who_was_swapped_last_comes_back_first() -> None:
    scheduler = small(preemption_mode="swap", swap_space=16)
    for name in "ab":
        scheduler.submit(ask(name, 5, max_tokens=9), 0.0)
    step(scheduler)
    for name in "ab":
        preempt(scheduler, name)
    assert scheduler.snapshot()["swapped"] == ["b", "a"]


class Reranked(Policy):
    """Ranks change while sequences wait."""

    refresh = True
    ranks: ClassVar[dict[str, float]] = {}

    def rank(self, sequence: Sequence) -> tuple[float, ...]:
        return (self.ranks[sequence.id],)


def test_a_swapped_request_whose_rank_got_better_returns_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Reranked, "ranks", {"a": 1.0, "b": 2.0})
    policy = f"{__name__}.{Reranked.__name__}"
    scheduler = small(policy=policy, max_num_seqs=2, preemption_mode="swap", swap_space=8)
    for name in "ab":
        scheduler.submit(ask(name, 5, max_tokens=9), 0.0)
    step(scheduler)
    for name in "ba":
        preempt(scheduler, name)
    Reranked.ranks["b"] = 0.0
    plans = [step(scheduler), step(scheduler)]
    assert [name for plan in plans for name in plan["resumed"]] == ["b", "a"]


def test_what_one_has_passed_and_another_has_now_is_not_shared() -> None:
    """A block that a window has passed may be at the same index of another sequence."""
    window = {"kind": "sliding_window", "window": 4}
    scheduler = swapping(
        attention_groups=[window],
        block_size=2,
        num_blocks=5,
        max_num_batched_tokens=6,
        enable_prefix_caching=False,
        free_order="lru",
    )
    scheduler.submit(ask("a", 8, max_tokens=9), 0.0)
    for _ in range(3):
        step(scheduler)
    scheduler.submit(ask("b", 8, max_tokens=9), 0.0)
    scheduler.plan(0.0)
    both = [sequence(scheduler, "a"), sequence(scheduler, "b")]
    tables = scheduler.state.cache.tables
    assert tables.blocks(both[0].slot)[:3] == tables.blocks(both[1].slot)
    assert scheduler.state.swapping._kept(both) == [9, 0]
