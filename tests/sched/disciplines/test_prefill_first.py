"""Steps that are all prefill or all decode: prompts first, whole, and not for ever."""

from typing import Any

import pytest

from paceline import Plan, Scheduler
from paceline.testing.reference import reference
from tests.sched.support import (
    VOCAB,
    Pipeline,
    ask,
    commit,
    crowded,
    findable,
    finish_all,
    gate,
    preempt,
    small,
    state,
    step,
)


def first(**settings: Any) -> Scheduler:
    """A scheduler in which arrivals may hold up those who decode for a long time."""
    return small(**{"discipline": "prefill_first", "max_wait": 1000.0} | settings)


def submit(scheduler: Scheduler, **prompts: int) -> None:
    for name, prompt in prompts.items():
        scheduler.submit(ask(name, prompt, max_tokens=9), 0.0)


def kinds(scheduler: Scheduler, steps: int, start: float = 0.0) -> list[tuple[str, dict[str, int]]]:
    """What each step is and who computes how much in it, a second a step."""
    found: list[tuple[str, dict[str, int]]] = []
    for number in range(steps):
        plan = scheduler.plan(start + number)
        commit(scheduler, plan, start + number)
        found.append((plan.kind, plan.to_dict()["tokens"]))
    return found


# -- one kind or the other ---------------------------------------------------


def test_a_prompt_is_prefilled_and_then_decoded() -> None:
    scheduler = first()
    submit(scheduler, a=5)
    assert kinds(scheduler, 3) == [
        ("prefill", {"a": 5}),
        ("decode", {"a": 1}),
        ("decode", {"a": 1}),
    ]


def test_an_arrival_holds_up_those_who_decode() -> None:
    scheduler = first()
    submit(scheduler, a=5)
    kinds(scheduler, 2)
    submit(scheduler, b=4, c=3)
    assert kinds(scheduler, 2) == [
        ("prefill", {"b": 4, "c": 3}),
        ("decode", {"a": 1, "b": 1, "c": 1}),
    ]


def test_a_prompt_of_one_token_is_a_prefill_too() -> None:
    scheduler = first()
    submit(scheduler, a=1)
    assert kinds(scheduler, 2) == [("prefill", {"a": 1}), ("decode", {"a": 1})]


def test_a_steady_decode_shares_its_rows_and_keeps_its_kind() -> None:
    scheduler = first()
    submit(scheduler, a=5, b=5)
    kinds(scheduler, 2)
    plans: list[Plan] = []
    for _ in range(3):
        plans.append(scheduler.plan(0.0))
        commit(scheduler, plans[-1])
    assert {plan.kind for plan in plans} == {"decode"}
    assert plans[1].rows is plans[2].rows


def test_an_arrival_ends_a_steady_decode() -> None:
    scheduler = first()
    submit(scheduler, a=5)
    kinds(scheduler, 4)
    submit(scheduler, b=4)
    assert kinds(scheduler, 2) == [("prefill", {"b": 4}), ("decode", {"a": 1, "b": 1})]


def test_with_nobody_here_nothing_is_planned() -> None:
    scheduler = first()
    assert scheduler.plan(0.0).empty
    assert gate(scheduler) is None


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_no_step_is_ever_mixed(depth: int) -> None:
    scheduler = first(max_num_batched_tokens=8, num_blocks=12, long_prefill_token_threshold=5)
    submit(scheduler, a=5, b=20, c=3, d=11)
    pipeline = Pipeline(scheduler, depth).run()
    for plan in (plan for plan in pipeline.plans if len(plan.rows)):
        assert plan.kind in ("prefill", "decode")
        if plan.kind == "decode":
            assert set(plan.rows.count.tolist()) == {1}
            assert not plan.admitted
        else:
            new = {one.slot for one in plan.admitted}
            assert all(
                count > 1 or slot in new
                for slot, count in zip(plan.rows.slot, plan.rows.count, strict=True)
            )


# -- the budget --------------------------------------------------------------


def test_a_prompt_that_does_not_fit_beside_others_waits_whole() -> None:
    scheduler = first(max_num_batched_tokens=16)
    submit(scheduler, a=10, b=10, c=2)
    plan = scheduler.plan(0.0)
    assert plan.to_dict()["tokens"] == {"a": 10}
    assert gate(scheduler) == ("budget", "b", 4)
    commit(scheduler, plan)
    assert kinds(scheduler, 2) == [
        ("prefill", {"b": 10, "c": 2}),
        ("decode", {"a": 1, "b": 1, "c": 1}),
    ]


def test_the_first_prompt_is_cut_and_goes_on_before_others() -> None:
    scheduler = first(max_num_batched_tokens=16)
    submit(scheduler, long=20, b=10)
    assert kinds(scheduler, 3) == [
        ("prefill", {"long": 16}),
        ("prefill", {"long": 4, "b": 10}),
        ("decode", {"long": 1, "b": 1}),
    ]


def test_behind_the_rest_of_a_prompt_only_whole_ones_are_taken() -> None:
    scheduler = first(max_num_batched_tokens=16)
    submit(scheduler, long=20, b=14)
    assert [tokens for _, tokens in kinds(scheduler, 3)] == [{"long": 16}, {"long": 4}, {"b": 14}]


def test_the_last_position_of_a_prompt_is_a_step_like_a_decode() -> None:
    scheduler = first(max_num_batched_tokens=8)
    submit(scheduler, a=9)
    assert kinds(scheduler, 2) == [("prefill", {"a": 8}), ("decode", {"a": 1})]
    assert state(scheduler, "a")["known"] == 10


def test_without_chunks_a_prompt_that_does_not_fit_waits() -> None:
    scheduler = first(enable_chunked_prefill=False, max_num_batched_tokens=16, max_model_len=16)
    submit(scheduler, a=10, b=10)
    assert kinds(scheduler, 3) == [
        ("prefill", {"a": 10}),
        ("prefill", {"b": 10}),
        ("decode", {"a": 1, "b": 1}),
    ]


def test_a_threshold_cuts_every_prompt() -> None:
    scheduler = first(max_num_batched_tokens=16, long_prefill_token_threshold=6)
    submit(scheduler, a=10, b=9, c=5)
    assert [tokens for _, tokens in kinds(scheduler, 3)] == [
        {"a": 6, "b": 6},
        {"a": 4, "b": 3, "c": 5},
        {"a": 1, "b": 1, "c": 1},
    ]


def test_residents_that_do_not_all_fit_are_prefilled_in_their_order() -> None:
    """Three whose prompts are cut by the threshold, of which one is aborted."""
    scheduler = first(max_num_batched_tokens=18, long_prefill_token_threshold=6, max_num_seqs=3)
    submit(scheduler, a=18, b=18, c=18)
    assert kinds(scheduler, 1) == [("prefill", {"a": 6, "b": 6, "c": 6})]
    scheduler.abort("b", 0.0)
    assert [tokens for _, tokens in kinds(scheduler, 2)] == [{"a": 6, "c": 6}] * 2


def test_only_the_uncached_part_is_charged() -> None:
    prompt = list(range(100, 113))
    scheduler = first(max_num_batched_tokens=16)
    scheduler.submit(ask("a", prompt, max_tokens=1), 0.0)
    finish_all(scheduler)
    scheduler.submit(ask("b", 12, max_tokens=2), 0.0)
    scheduler.submit(ask("c", prompt, max_tokens=2), 0.0)
    assert kinds(scheduler, 1) == [("prefill", {"b": 12, "c": 1})]


def test_prompts_of_one_step_share_what_is_alike() -> None:
    scheduler = first()
    for name in "ab":
        scheduler.submit(ask(name, range(9)), 0.0)
    assert kinds(scheduler, 1) == [("prefill", {"a": 9, "b": 1})]


def test_slots_bound_how_many_are_prefilled() -> None:
    scheduler = first(max_num_seqs=2)
    submit(scheduler, a=3, b=3, c=3)
    assert kinds(scheduler, 1) == [("prefill", {"a": 3, "b": 3})]
    assert gate(scheduler) == ("seqs", "c", 1)
    assert kinds(scheduler, 1) == [("decode", {"a": 1, "b": 1})]
    assert gate(scheduler) == ("seqs", "c", 1)


# -- blocks ------------------------------------------------------------------


def test_a_prompt_that_lacks_blocks_waits_and_the_others_decode() -> None:
    scheduler = first(num_blocks=4)
    submit(scheduler, a=8)
    kinds(scheduler, 1)
    scheduler.submit(ask("b", 12, max_tokens=1), 0.0)
    assert kinds(scheduler, 1) == [("decode", {"a": 1})]
    assert gate(scheduler) == ("blocks", "b", 1)


def test_the_youngest_gives_way_in_a_decode_step_and_nobody_is_admitted() -> None:
    scheduler = crowded(discipline="prefill_first", max_num_seqs=3)
    scheduler.submit(ask("c", 2, max_tokens=2), 0.0)
    plan = scheduler.plan(0.0)
    assert plan.kind == "prefill"  # "c" fits in the block that is left
    commit(scheduler, plan)
    plan = scheduler.plan(0.0).to_dict()
    assert (plan["preempted"], plan["new"], plan["resumed"]) == (["c", "b"], [], [])
    assert plan["tokens"] == {"a": 1}
    assert scheduler.snapshot()["free_blocks"] == 1
    assert gate(scheduler) == ("preempted", "b", 2)
    assert scheduler.snapshot()["waiting"] == ["b", "c"]


def test_a_prompt_that_cannot_go_on_makes_room_too() -> None:
    """Without a reservation the rest of a prompt needs blocks that are not there."""
    scheduler = first(num_blocks=5, max_num_batched_tokens=8, reserve_full_prompt=False)
    submit(scheduler, a=3, long=10)
    assert kinds(scheduler, 2) == [("prefill", {"a": 3}), ("prefill", {"long": 8})]
    pool = scheduler.state.cache.pool
    taken = pool.take(pool.free)
    plan = scheduler.plan(0.0)
    assert (plan.preempted, plan.to_dict()["tokens"]) == (("long",), {"a": 1})
    assert (plan.kind, gate(scheduler)) == ("decode", ("preempted", "long", 1))
    pool.drop(taken)
    commit(scheduler, plan)
    assert len(finish_all(scheduler)["long"]) == 9


def test_a_lone_sequence_that_cannot_grow_does_not_stop_the_engine() -> None:
    scheduler = first(num_blocks=3, enable_prefix_caching=False)
    submit(scheduler, a=4)
    kinds(scheduler, 1)
    pool = scheduler.state.cache.pool
    taken = pool.take(pool.free)  # something else holds all that is left
    plan = scheduler.plan(0.0)
    assert (plan.preempted, plan.empty, plan.kind) == (("a",), True, "decode")
    assert "for want of 1 block for itself" in scheduler.explain("a")
    assert scheduler.plan(0.0).to_dict()["tokens"] == {}
    pool.drop(taken)
    assert kinds(scheduler, 1) == [("prefill", {"a": 5})]
    assert len(finish_all(scheduler)["a"]) == 7
    assert scheduler.stats.preemptions == 1


def test_a_lone_sequence_that_fills_the_pool_runs_to_its_end() -> None:
    scheduler = first(num_blocks=3)
    scheduler.submit(ask("a", 1, max_tokens=12), 0.0)
    assert finish_all(scheduler) == {"a": [9] * 12}
    assert scheduler.stats.preemptions == 0


def test_a_watermark_is_left_free_by_prefills() -> None:
    scheduler = first(num_blocks=10, watermark=0.2, max_num_batched_tokens=64)
    submit(scheduler, a=12, b=24)
    assert kinds(scheduler, 1) == [("prefill", {"a": 12})]
    assert gate(scheduler) == ("blocks", "b", 1)


# -- those who were swapped --------------------------------------------------


def swapped(**settings: Any) -> Scheduler:
    """With "b" on the host and "a" running."""
    settings = {"preemption_mode": "swap", "swap_space": 4} | settings
    scheduler = crowded(discipline="prefill_first", **settings)
    step(scheduler)
    assert scheduler.snapshot()["swapped"] == ["b"]
    return scheduler


def test_while_anybody_is_swapped_nobody_else_is_admitted() -> None:
    """ "c" would fit into the block that is free; "b" needs two."""
    scheduler = swapped(max_num_seqs=3)
    scheduler.submit(ask("c", 1, max_tokens=1), 0.0)
    plan = scheduler.plan(0.0)
    assert (plan.kind, plan.to_dict()["tokens"]) == ("decode", {"a": 1})
    assert gate(scheduler) == ("blocks", "b", 1)


def test_the_swapped_return_in_a_decode_step() -> None:
    scheduler = swapped()
    scheduler.submit(ask("c", 1, max_tokens=1), 0.0)
    while not (plan := scheduler.plan(0.0)).to_dict()["resumed"]:
        commit(scheduler, plan)
    assert (plan.kind, plan.to_dict()["tokens"]) == ("decode", {"b": 1})
    assert gate(scheduler) == ("decodes", "c", 0)
    commit(scheduler, plan)
    assert kinds(scheduler, 1) == [("prefill", {"c": 1})]


def test_one_that_returns_with_more_than_one_position_to_compute_catches_up() -> None:
    """A part of its prompt is all that was kept of it."""
    scheduler = first(
        preemption_mode="swap",
        swap_space=8,
        max_num_batched_tokens=8,
        enable_prefix_caching=False,
    )
    submit(scheduler, a=16)
    kinds(scheduler, 1)
    preempt(scheduler, "a")
    plan = scheduler.plan(0.0)
    assert (plan.swap_in, plan.total) == ((), 0)
    commit(scheduler, plan)
    plan = scheduler.plan(0.0)
    assert len(plan.swap_in) == 2
    assert (plan.kind, plan.to_dict()["tokens"]) == ("prefill", {"a": 8})
    commit(scheduler, plan)
    assert len(finish_all(scheduler)["a"]) == 8


def test_those_who_wait_are_told_that_one_that_returned_catches_up() -> None:
    """Not that the step decodes: it does not."""
    scheduler = first(preemption_mode="swap", swap_space=8, max_num_batched_tokens=8)
    submit(scheduler, a=16)
    kinds(scheduler, 1)
    preempt(scheduler, "a")
    submit(scheduler, c=3)
    kinds(scheduler, 1)
    plan = scheduler.plan(0.0)
    assert (plan.kind, plan.to_dict()["tokens"]) == ("prefill", {"a": 8})
    assert gate(scheduler) == ("prefill", "c", 0)


def test_one_that_returns_beside_others_catches_up_in_the_next_step() -> None:
    scheduler = first(preemption_mode="swap", swap_space=8, max_num_batched_tokens=8)
    submit(scheduler, b=3, a=16)
    kinds(scheduler, 2)
    assert state(scheduler, "a")["computed"] == 8
    preempt(scheduler, "a")
    assert kinds(scheduler, 3) == [
        ("decode", {"b": 1}),
        ("decode", {"b": 1}),
        ("prefill", {"a": 8}),
    ]


def test_a_prompt_that_has_begun_goes_on_before_anybody_returns() -> None:
    """And the one on the host is told so."""
    scheduler = first(preemption_mode="swap", swap_space=8, max_num_batched_tokens=8)
    submit(scheduler, b=5)
    kinds(scheduler, 2)
    submit(scheduler, long=24)
    kinds(scheduler, 1)
    preempt(scheduler, "b")
    plan = scheduler.plan(0.0)
    assert (plan.kind, plan.to_dict()["tokens"]) == ("prefill", {"long": 8})
    assert gate(scheduler) == ("prefill", "b", 0)
    assert scheduler.why() == {"b": "in steps that prefill"}
    commit(scheduler, plan)
    assert kinds(scheduler, 2) == [("prefill", {"long": 8}), ("decode", {"long": 1, "b": 1})]


# -- how long decodes are held up --------------------------------------------


def arriving(scheduler: Scheduler, steps: int, start: float = 0.0) -> str:
    """The kinds of steps, a second each, while there is always somebody to admit."""
    found = ""
    for number in range(steps):
        name = f"r{start + number}"
        scheduler.submit(ask(name, 2, max_tokens=3), start + number)
        found += kinds(scheduler, 1, start + number)[0][0][0]
    return found


@pytest.mark.parametrize(
    ("max_wait", "expected"),
    [
        (0.0, "pd" * 6),
        (1.0, "pd" * 6),
        (2.0, "ppd" * 4),
        (3.0, "pppd" * 3),
        (1000.0, "p" * 12),
    ],
)
def test_a_stream_of_arrivals_holds_up_decodes_for_so_long_and_no_longer(
    max_wait: float, expected: str
) -> None:
    """Measured from the first step in which somebody could have decoded and did not."""
    scheduler = first(max_num_seqs=64, max_num_batched_tokens=64, num_blocks=64, max_wait=max_wait)
    submit(scheduler, a=5)
    assert [kind for kind, _ in kinds(scheduler, 2)] == ["prefill", "decode"]
    assert arriving(scheduler, 12, start=2.0) == expected


def test_those_who_wait_are_told_that_the_step_decodes() -> None:
    scheduler = first(max_wait=0.0)
    submit(scheduler, a=5)
    kinds(scheduler, 2)
    submit(scheduler, b=5)
    kinds(scheduler, 1)
    submit(scheduler, c=5)
    assert kinds(scheduler, 1) == [("decode", {"a": 1, "b": 1})]
    assert gate(scheduler) == ("decodes", "c", 0)
    assert scheduler.why() == {"c": "in steps that decode"}
    assert kinds(scheduler, 1) == [("prefill", {"c": 5})]


def test_a_long_prompt_holds_up_nobody_while_nobody_else_is_there() -> None:
    scheduler = first(max_num_batched_tokens=8, max_wait=1.0)
    scheduler.submit(ask("a", 32, max_tokens=2), 0.0)
    assert [kind for kind, _ in kinds(scheduler, 4)] == ["prefill"] * 4


def test_the_wait_begins_with_the_step_that_ends_the_prompt() -> None:
    scheduler = first(max_num_batched_tokens=8, max_wait=2.0)
    scheduler.submit(ask("a", 32, max_tokens=9), 0.0)
    kinds(scheduler, 4)
    scheduler.submit(ask("b", 24, max_tokens=9), 4.0)
    assert "".join(kind[0] for kind, _ in kinds(scheduler, 4, start=4.0)) == "pdpp"


def test_the_wait_begins_anew_after_a_decode() -> None:
    scheduler = first(max_num_seqs=64, max_num_batched_tokens=64, num_blocks=64, max_wait=2.0)
    submit(scheduler, a=5)
    kinds(scheduler, 2)
    assert arriving(scheduler, 6, start=100.0) == "ppdppd"


# -- with everything else ----------------------------------------------------


def test_a_strictly_better_arrival_displaces_the_worst() -> None:
    scheduler = first(policy="priority", preempt_on_arrival=True, max_num_seqs=2)
    for name, priority in (("worst", 5), ("bad", 3)):
        scheduler.submit(ask(name, 4, max_tokens=9, priority=priority), 0.0)
    step(scheduler)
    scheduler.submit(ask("good", 4, priority=1), 0.0)
    plan = scheduler.plan(0.0)
    told = plan.to_dict()
    assert (told["preempted"], told["new"], told["tokens"]) == (["worst"], ["good"], {"good": 4})
    assert plan.kind == "prefill"


def test_nobody_is_displaced_in_vain() -> None:
    scheduler = first(policy="priority", preempt_on_arrival=True, num_blocks=6)
    scheduler.submit(ask("equal", 17, max_tokens=4, priority=1), 0.0)
    scheduler.submit(ask("worse", 3, max_tokens=2, priority=5), 0.0)
    step(scheduler)
    scheduler.submit(ask("good", 12, priority=1), 0.0)
    assert step(scheduler)["preempted"] == []


def test_drafts_ride_on_decodes_and_never_on_prompts() -> None:
    scheduler = first(num_speculative_tokens=3, speculation="fixed")
    submit(scheduler, a=5)
    plan = step(scheduler)
    assert (plan["tokens"], plan["drafts"]) == ({"a": 5}, {})
    plan = scheduler.plan(0.0)
    told = plan.to_dict()
    assert (told["tokens"], told["drafts"], plan.kind) == ({"a": 4}, {"a": 3}, "decode")
    commit(scheduler, plan, a=[1, 2])
    assert state(scheduler, "a")["known"] == 5 + 1 + 2


def test_blocks_are_findable_as_soon_as_they_are_planned() -> None:
    scheduler = first(max_num_batched_tokens=8)
    scheduler.submit(ask("a", range(13)), 0.0)
    scheduler.plan(0.0)
    assert findable(scheduler, range(13)) == 8


POLICIES = ("fcfs", "priority", "shortest", "longest", "deadline", "fair")


@pytest.mark.no_cover
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("drafts", [0, 2])
def test_output_is_the_same_under_every_policy(policy: str, depth: int, drafts: int) -> None:
    scheduler = first(
        policy=policy,
        preempt_on_arrival=True,
        num_blocks=7,
        max_num_batched_tokens=9,
        num_speculative_tokens=drafts,
        speculation="fixed",
        max_wait=0.0,
    )
    asked = [
        ask(name, 4 + number, max_tokens=12, priority=3 - number, tenant=name)
        for number, name in enumerate("abcd")
    ]
    for one in asked:
        scheduler.submit(one, 0.0)
    pipeline = Pipeline(scheduler, depth).run()
    assert pipeline.got == {one.id: reference(one, VOCAB, 64)[0] for one in asked}
    assert scheduler.stats.preemptions > 0


@pytest.mark.parametrize("policy", POLICIES)
def test_who_is_prefilled_first_is_for_the_policy_to_say(policy: str) -> None:
    scheduler = first(policy=policy, max_num_seqs=1)
    scheduler.submit(ask("long", 9, priority=5, deadline=9.0), 0.0)
    scheduler.submit(ask("short", 2, priority=1, deadline=1.0), 0.0)
    expected = "long" if policy in ("fcfs", "fair", "longest") else "short"
    assert step(scheduler)["new"] == [expected]


def test_who_was_held_up_and_has_gone_holds_up_nobody() -> None:
    scheduler = first(max_wait=10.0, max_num_batched_tokens=8)
    submit(scheduler, a=5)
    step(scheduler, now=0.0)
    submit(scheduler, b=24)
    assert kinds(scheduler, 1, start=1.0) == [("prefill", {"b": 8})]
    scheduler.abort("a", now=1.0)
    assert kinds(scheduler, 2, start=2.0) == [("prefill", {"b": 8}), ("prefill", {"b": 8})]
    submit(scheduler, c=5)
    assert kinds(scheduler, 1, start=12.0) == [("prefill", {"c": 5})]


def pushy(**settings: Any) -> Scheduler:
    usual = {"max_num_seqs": 2, "max_num_batched_tokens": 8, "num_blocks": 32}
    return first(policy="priority", preempt_on_arrival=True, **usual | settings)


def test_a_prompt_of_several_steps_pushes_out_who_is_less_urgent() -> None:
    scheduler = pushy(max_num_seqs=1)
    scheduler.submit(ask("low", 4, 20, priority=5), now=0.0)
    step(scheduler)
    scheduler.submit(ask("high", 12, 4, priority=0), now=0.0)
    assert step(scheduler)["preempted"] == ["low"]


def test_nobody_is_pushed_out_while_a_longer_prompt_takes_whole_steps() -> None:
    scheduler = pushy(max_wait=1e9)
    scheduler.submit(ask("low", 4, 20, priority=5), now=0.0)
    step(scheduler)
    scheduler.submit(ask("best", 20, 4, priority=0), now=0.0)
    assert step(scheduler)["tokens"] == {"best": 8}
    scheduler.submit(ask("high", 4, 4, priority=1), now=0.0)
    assert step(scheduler)["preempted"] == []
    plan = step(scheduler)
    assert (plan["preempted"], plan["new"]) == (["low"], ["high"])
    assert plan["tokens"] == {"best": 4, "high": 4}


def test_nobody_is_pushed_out_by_one_that_a_decode_step_keeps_waiting() -> None:
    scheduler = pushy(max_wait=0.0)
    scheduler.submit(ask("low", 4, 20, priority=5), now=0.0)
    step(scheduler)
    step(scheduler)
    scheduler.submit(ask("best", 4, 20, priority=0), now=0.0)
    step(scheduler)
    scheduler.submit(ask("high", 4, 4, priority=1), now=0.0)
    plan = step(scheduler)
    assert (plan["preempted"], plan["tokens"]) == ([], {"low": 1, "best": 1})
    plan = step(scheduler)
    assert (plan["preempted"], plan["new"]) == (["low"], ["high"])
