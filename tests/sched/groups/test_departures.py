"""SequenceGroups are preempted, swapped and return as a whole."""

import pytest

from paceline.testing.reference import reference
from tests.sched.groups.support import LENGTH, STOP, child_states, children, forked, run, tight
from tests.sched.support import (
    DEPTHS,
    TOKEN,
    VOCAB,
    Pipeline,
    ask,
    commit,
    counters,
    finish_all,
    preempt,
    sequence,
    small,
    state,
    step,
)


def test_a_family_gives_way_as_a_whole() -> None:
    """One more block would do, and one of its children is the newest of all."""
    scheduler = small(num_blocks=7, max_num_seqs=4)
    scheduler.submit(ask("b", 8, max_tokens=9), 0.0)
    scheduler.submit(ask("a", 6, max_tokens=4, n=3), 0.0)
    step(scheduler)
    while not (plan := step(scheduler))["preempted"]:
        pass
    assert plan["preempted"] == ["a"]
    assert list(plan["tokens"]) == ["b"]
    assert {child["state"] for child in child_states(scheduler)} == {"PREEMPTED"}
    assert {child["preemptions"] for child in child_states(scheduler)} == {1}
    assert scheduler.stats.preemptions == 1
    assert scheduler.snapshot()["waiting"] == ["a"]


def test_a_family_is_swapped_as_a_whole_and_shared_blocks_once() -> None:
    scheduler = small(preemption_mode="swap", swap_space=8, enable_prefix_caching=False)
    scheduler.submit(ask("a", 9, max_tokens=9, n=3), 0.0)
    for _ in range(3):
        step(scheduler)
    preempt(scheduler, "a")
    plan = step(scheduler)
    assert len(plan["swap_out"]) == 2 + 3
    assert {child["state"] for child in child_states(scheduler)} == {"SWAPPED"}
    assert scheduler.snapshot()["swapped"] == ["a"]
    assert scheduler.snapshot()["host_free_blocks"] == 3
    plan = step(scheduler)
    assert plan["resumed"] == ["0_a", "1_a", "2_a"]
    assert len(plan["swap_in"]) == 2 + 3
    tables = [child["blocks"][0] for child in child_states(scheduler)]
    assert all(table[:2] == tables[0][:2] for table in tables)
    assert scheduler.snapshot()["host_free_blocks"] == 8


def test_a_family_that_has_yet_to_fork_is_not_swapped() -> None:
    """There is one sequence to keep, and it has not come to what it is worth."""
    scheduler = small(preemption_mode="swap", swap_space=8)
    scheduler.submit(ask("a", 6, n=3), 0.0)
    step(scheduler)
    preempt(scheduler, "a")
    scheduler.check()
    plan = step(scheduler)
    assert (plan["swap_out"], state(scheduler, "a")["preemptions"]) == ([], 1)
    assert len(finish_all(scheduler)["2_a"]) == 4


@DEPTHS
def test_a_family_that_forks_and_gives_way_in_one_step_takes_its_copies_along(depth: int) -> None:
    """The fork takes the last block, and "b" needs one in the same step."""
    scheduler = small(num_blocks=5, preemption_mode="swap", swap_space=8)
    asked = ask("a", 6, max_tokens=2, n=2, seed=3)
    pipeline = run(scheduler, ask("b", 8, max_tokens=9), asked, depth=depth)
    assert pipeline.got | children(asked) == pipeline.got
    if depth == 1:
        plan = next(plan for plan in pipeline.plans if plan.copies)
        ((_, target),) = plan.copies
        assert (plan.preempted, len(plan.swap_out)) == (("a",), 3)
        assert target in [block for block, _ in plan.swap_out]


def test_a_family_comes_back_to_where_each_of_it_was() -> None:
    scheduler = forked(3, max_tokens=8)
    for _ in range(3):
        step(scheduler, **{f"{child}_a": [child] for child in range(3)})
    preempt(scheduler, "a")
    resumed: dict[str, list[int]] = {}
    for _ in range(2):
        plan = scheduler.plan(0.0)
        resumed |= {new.request.id: new.tokens.tolist() for new in plan.admitted}
        commit(scheduler, plan)
    prompt = sequence(scheduler, "a").request.prompt.tolist()
    assert resumed == {f"{child}_a": [*prompt, 9, child, child, child] for child in range(3)}


def test_what_a_family_still_finds_is_not_computed_again() -> None:
    scheduler = forked(3, max_tokens=8)
    for _ in range(5):
        step(scheduler, **{f"{child}_a": [child] for child in range(3)})
    assert [counters(scheduler, "a")] == [(15, 14, 14)]
    preempt(scheduler, "a")
    before = scheduler.stats.planned
    while state(scheduler, "a")["computed"] < 15:
        step(scheduler)
    assert scheduler.stats.planned - before <= 3 * (15 - 12) + 3


@DEPTHS
@pytest.mark.parametrize("mode", ["recompute", "swap"])
@pytest.mark.parametrize("discipline", ["unified", "prefill_first"])
def test_output_is_the_same_when_families_give_way(depth: int, mode: str, discipline: str) -> None:
    scheduler = tight(mode, discipline=discipline)
    asked = [
        ask("a", 6, max_tokens=9, n=3, seed=11),
        ask("b", 5, max_tokens=12),
        ask("c", 7, max_tokens=8, n=2, seed=4),
    ]
    pipeline = run(scheduler, *asked, depth=depth)
    expected = (
        children(asked[0]) | children(asked[2]) | {"b": reference(asked[1], VOCAB, LENGTH)[0]}
    )
    assert pipeline.got | expected == pipeline.got
    assert scheduler.stats.preemptions > 0
    assert (scheduler.stats.swapped_out_blocks > 0) == (mode == "swap")
    assert scheduler.snapshot()["free_blocks"] == 11


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_the_one_that_is_left_of_a_family_gives_way_and_returns_alone(mode: str) -> None:
    scheduler = tight(mode)
    scheduler.submit(ask("a", 6, max_tokens=9, n=2, stop_token_ids=(STOP,)), 0.0)
    step(scheduler)
    step(scheduler)
    step(scheduler, **{"0_a": [STOP]})
    preempt(scheduler, "a")
    scheduler.check()
    assert set(finish_all(scheduler)) == {"1_a", "a"}
    assert scheduler.snapshot()["free_blocks"] == 11


def test_a_leader_that_ends_before_the_others_have_come_back_leaves_them_to_begin_anew() -> None:
    """Each lacks one token; the first gets it in the step in which it returns."""
    scheduler = small()
    asked = ask("a", 6, max_tokens=6, n=3, seed=2)
    scheduler.submit(asked, 0.0)
    pipeline = Pipeline(scheduler, 1)
    while sum(map(len, pipeline.got.values())) < 15:
        pipeline.launch()
        pipeline.land()
    preempt(scheduler, "a")
    pipeline.run()
    assert pipeline.got | children(asked) == pipeline.got
    assert sorted(pipeline.ends) == ["0_a", "1_a", "2_a", "a"]
    assert {len(ends) for ends in pipeline.ends.values()} == {1}
    told = scheduler.explain("a")
    assert "the end of the one that computed the prompt" in told


@pytest.mark.parametrize("give_up", ["retry", "reset"])
def test_a_family_survives_a_step_that_is_lost(give_up: str) -> None:
    for steps in range(1, 6):
        scheduler = small()
        asked = ask("a", 6, max_tokens=6, n=3, seed=2)
        scheduler.submit(asked, 0.0)
        pipeline = Pipeline(scheduler, 2)
        for _ in range(steps):
            plan = pipeline.launch()
            if len(pipeline.flight) == 2 and steps < 5:
                pipeline.land()
        if give_up == "retry":
            scheduler.retry(plan, 0.0)
            pipeline.flight.clear()
        else:
            scheduler.reset_prefix_cache(reset_running_requests=True)
        scheduler.check()
        pipeline.run()
        assert pipeline.got | children(asked) == pipeline.got


@pytest.mark.parametrize("policy", ["fcfs", "priority", "shortest", "longest", "deadline", "fair"])
def test_families_run_under_every_policy(policy: str) -> None:
    asked = [
        ask(name, 4 + number, max_tokens=8, n=number % 3 + 1, seed=number, priority=3 - number)
        for number, name in enumerate("abcde")
    ]
    scheduler = tight(policy=policy, preempt_on_arrival=True)
    pipeline = run(scheduler, *asked, depth=2)
    for one in asked:
        alone = {one.id: reference(one, VOCAB, LENGTH)[0]}
        expected = children(one) if one.width > 1 else alone
        assert pipeline.got | expected == pipeline.got
    assert scheduler.stats.preemptions > 0


def test_a_family_that_returned_is_not_on_the_host_any_more() -> None:
    """Not for those either who lead it later."""
    scheduler = small(preemption_mode="swap", swap_space=16)
    scheduler.submit(ask("a", 5, max_tokens=8, n=2), 0.0)
    for _ in range(3):
        step(scheduler)
    preempt(scheduler, "a")
    step(scheduler)
    assert scheduler.snapshot()["swapped"] == ["a"]
    step(scheduler)
    assert scheduler.snapshot()["running"] == ["a"]
    scheduler.abort("a", 0.0, child=0)
    scheduler.retry(scheduler.plan(0.0), 0.0)
    assert scheduler.snapshot()["requests"]["a"]["state"] == "PREEMPTED"
    assert set(finish_all(scheduler)["1_a"]) == {TOKEN}
