"""Parallel samples, the best of several and beams, as clients and runners see them."""

from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

from paceline import Plan, Request, RequestError, Scheduler, StepError, StepResult
from paceline.core.plan import Candidates
from paceline.core.request import Finish
from paceline.sim.reference import beam_search, best_of, reference
from tests.sched.support import (
    TOKEN,
    VOCAB,
    Pipeline,
    answer,
    ask,
    commit,
    counters,
    finish_all,
    gate,
    preempt,
    sampling,
    sequence,
    small,
    state,
    step,
)

LENGTH = 64  # of the model
DEPTHS = pytest.mark.parametrize("depth", [1, 2, 3, 4])
STOP = 5


def children(request: Request) -> dict[str, list[int]]:
    """What each child of a request must get."""
    each = [request.child(index) for index in range(request.width)]
    return {one.id: reference(one, VOCAB, LENGTH)[0] for one in each}


def run(scheduler: Scheduler, *asked: Request, depth: int = 1, vocab: int = VOCAB) -> Pipeline:
    for one in asked:
        scheduler.submit(one, 0.0)
    return Pipeline(scheduler, depth, vocab=vocab).run()


def forked(number: int = 3, prompt: int = 9, max_tokens: int = 9, **asked: Any) -> Scheduler:
    """A family that has forked and got its first tokens."""
    scheduler = small()
    scheduler.submit(ask("a", prompt, max_tokens=max_tokens, n=number, **asked), 0.0)
    step(scheduler)
    step(scheduler)
    return scheduler


def each(scheduler: Scheduler, name: str = "a") -> list[dict[str, Any]]:
    """The state of every child that has not ended."""
    return list(state(scheduler, name)["children"].values())


# -- one prompt --------------------------------------------------------------


@DEPTHS
@pytest.mark.parametrize("number", [1, 2, 4])
@pytest.mark.parametrize("prompt", [1, 4, 5, 6, 9])
def test_the_prompt_is_computed_once(prompt: int, number: int, depth: int) -> None:
    """All but its last token, which each needs for itself to sample from."""
    pipeline = run(small(), ask("a", prompt, max_tokens=3, n=number), depth=depth)
    assert pipeline.runner.computed == prompt - 1 + number * 3
    assert pipeline.scheduler.stats.planned == pipeline.runner.computed
    assert pipeline.scheduler.stats.stale_rows == 0


@pytest.mark.parametrize("number", [2, 3, 4])
@pytest.mark.parametrize("prompt", [4, 5, 6, 9, 12])
def test_full_blocks_are_there_once_and_the_last_one_for_each(prompt: int, number: int) -> None:
    scheduler = small()
    scheduler.submit(ask("a", prompt, n=number), 0.0)
    step(scheduler)
    plan = step(scheduler)
    shared, rest = divmod(prompt - 1, 4)
    assert scheduler.snapshot()["free_blocks"] == 16 - shared - number
    assert len(plan["copies"]) == (number - 1 if rest else 0)
    assert scheduler.stats.copied_blocks == len(plan["copies"])
    tables = [child["blocks"][0] for child in each(scheduler)]
    assert all(table[:shared] == tables[0][:shared] for table in tables)
    assert len({table[shared] for table in tables}) == number


def test_a_copy_goes_from_the_leader_to_each_of_the_others() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 6, n=3), 0.0)
    step(scheduler)
    plan = step(scheduler)
    first, second, third = (child["blocks"][0][1] for child in each(scheduler))
    assert plan["copies"] == [[first, second], [first, third]]
    assert plan["new"] == ["1_a", "2_a"]


@pytest.mark.parametrize("caching", [True, False])
def test_blocks_are_shared_with_and_without_a_prefix_cache(caching: bool) -> None:
    scheduler = small(enable_prefix_caching=caching)
    scheduler.submit(ask("a", 9, n=4), 0.0)
    for _ in range(2):
        step(scheduler)
    assert scheduler.snapshot()["free_blocks"] == 16 - 2 - 4


def test_a_family_finds_what_others_computed() -> None:
    """And if that is all that it shares, it forks as it comes in."""
    scheduler = small()
    scheduler.submit(ask("b", range(9), max_tokens=1), 0.0)
    finish_all(scheduler)
    scheduler.submit(ask("a", range(9), n=3), 0.0)
    plan = scheduler.plan(0.0)
    assert plan.to_dict()["tokens"] == {"0_a": 1, "1_a": 1, "2_a": 1}
    assert [new.computed for new in plan.admitted] == [8, 8, 8]
    assert state(scheduler, "a")["cached"] == 8


@DEPTHS
@pytest.mark.parametrize("discipline", ["unified", "prefill_first"])
@pytest.mark.parametrize("settings", [{}, {"enable_prefix_caching": False}, {"drafts": 3}], ids=str)
def test_every_child_gets_what_it_would_get_alone(
    depth: int, discipline: str, settings: dict[str, Any]
) -> None:
    settings = dict(settings)
    drafts = {"num_speculative_tokens": settings.pop("drafts", 0), "speculation": "fixed"}
    scheduler = small(discipline=discipline, max_num_batched_tokens=7, **drafts, **settings)
    asked = ask("a", 6, max_tokens=7, n=3, seed=11)
    pipeline = run(scheduler, asked, ask("b", 5, max_tokens=9), depth=depth)
    assert {name: pipeline.got[name] for name in ("0_a", "1_a", "2_a")} == children(asked)
    assert pipeline.ends == {
        "0_a": ["length"],
        "1_a": ["length"],
        "2_a": ["length"],
        "a": ["length"],
        "b": ["length"],
    }


def test_a_long_prompt_in_pieces_forks_when_it_is_through() -> None:
    scheduler = small(max_num_batched_tokens=8)
    scheduler.submit(ask("a", 20, n=2), 0.0)
    assert [step(scheduler)["tokens"] for _ in range(4)] == [
        {"0_a": 8},
        {"0_a": 8},
        {"0_a": 3},
        {"0_a": 1, "1_a": 1},
    ]


def test_in_prefill_first_a_fork_is_a_decode() -> None:
    scheduler = small(discipline="prefill_first")
    scheduler.submit(ask("a", 6, n=3), 0.0)
    plans: list[Plan] = []
    for _ in range(3):
        plans.append(scheduler.plan(0.0))
        commit(scheduler, plans[-1])
    assert [plan.kind for plan in plans] == ["prefill", "decode", "decode"]
    assert [plan.total for plan in plans] == [5, 3, 3]


# -- names and seeds ---------------------------------------------------------


def test_each_child_has_the_seed_and_its_index() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 6, n=3, seed=40), 0.0)
    plans = [scheduler.plan(0.0) for _ in range(2)]
    told = {new.request.id: new.request.seed for plan in plans for new in plan.admitted}
    assert told == {"0_a": 40, "1_a": 41, "2_a": 42}


def test_without_a_seed_none_has_one() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 6, n=2), 0.0)
    plans = [scheduler.plan(0.0) for _ in range(2)]
    assert [new.request.seed for plan in plans for new in plan.admitted] == [None, None]


def test_outputs_name_the_request_and_the_child() -> None:
    scheduler = small()
    scheduler.submit(ask("b", 2), 0.0)
    scheduler.submit(ask("a", 6, n=2), 0.0)
    step(scheduler)
    plan = scheduler.plan(0.0)
    outputs = scheduler.commit(plan, answer(plan, {"b": [1], "0_a": [2], "1_a": [3]}), 0.0)
    assert outputs.request_id.tolist() == ["b", "a", "a"]
    assert outputs.child.tolist() == [-1, 0, 1]
    assert outputs.ids[:, 0].tolist() == [1, 2, 3]
    assert {label: one["tokens"] for label, one in outputs.to_dict().items()} == {
        "b": [1],
        "0_a": [2],
        "1_a": [3],
    }


def test_serials_are_as_many_as_sequences() -> None:
    scheduler = small()
    for name, number in (("a", 3), ("b", 1)):
        scheduler.submit(ask(name, 2, n=number), 0.0)
    step(scheduler)
    assert scheduler.plan(0.0).rows.serial.tolist() == [0, 1, 2, 3]


# -- fitting -----------------------------------------------------------------


def test_a_family_larger_than_the_slots_is_refused_with_numbers() -> None:
    scheduler = small(max_num_seqs=4)
    with pytest.raises(
        RequestError, match=r"^request 'a' asks for 5 sequences at once, and max_num_seqs is 4$"
    ):
        scheduler.submit(ask("a", 3, n=2, best_of=5), 0.0)
    scheduler.submit(ask("b", 3, n=4), 0.0)
    assert scheduler.unfinished == 1


@pytest.mark.parametrize(("blocks", "fits"), [(11, True), (10, False)])
def test_a_family_larger_than_the_pool_is_refused_with_numbers(blocks: int, fits: bool) -> None:
    """Nine tokens and nine more: two blocks for all, and three more for each of three."""
    scheduler = small(num_blocks=blocks)
    asked = ask("a", 9, max_tokens=9, n=3)
    if fits:
        assert set(run(scheduler, asked).ends) == {"a", "0_a", "1_a", "2_a"}
        return
    with pytest.raises(RequestError) as refusal:
        scheduler.submit(asked, 0.0)
    assert str(refusal.value) == (
        "request 'a': 9 prompt tokens and up to 9 new ones in each of 3 sequences need 11 blocks "
        "of 4, and the whole pool has 10"
    )


def test_a_family_waits_until_there_are_slots_for_all() -> None:
    scheduler = small(max_num_seqs=3)
    scheduler.submit(ask("b", 3, max_tokens=3), 0.0)
    scheduler.submit(ask("a", 3, max_tokens=2, n=3), 0.0)
    for _ in range(3):
        assert step(scheduler)["tokens"].keys() == {"b"}
        assert gate(scheduler) == ("seqs", "a", 1)
    assert step(scheduler)["new"] == ["0_a"]


def test_a_family_counts_all_its_sequences_also_before_it_forks() -> None:
    scheduler = small(max_num_seqs=3, max_num_batched_tokens=4)
    scheduler.submit(ask("a", 9, n=3), 0.0)
    scheduler.submit(ask("b", 3), 0.0)
    for _ in range(2):
        step(scheduler)
        assert scheduler.state.table.vacant == 0
    assert gate(scheduler) == ("seqs", "b", 1)


def test_a_family_is_one_request_in_every_queue_and_count() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 3, n=4, max_tokens=2), 0.0)
    assert (scheduler.unfinished, scheduler.snapshot()["waiting"]) == (1, ["a"])
    finish_all(scheduler)
    stats = scheduler.stats
    assert (stats.admissions, stats.finished, stats.forks) == (1, 1, 3)
    assert stats.sampled == 8


def test_the_same_id_is_refused_while_any_of_the_family_is_here() -> None:
    scheduler = forked(2, stop_token_ids=(STOP,))
    step(scheduler, **{"0_a": [STOP]})
    with pytest.raises(RequestError, match="'a' is already here"):
        scheduler.submit(ask("a", 3), 0.0)


@pytest.mark.parametrize(
    ("here", "comes", "twin"),
    [
        (("a", 3), ("2_a", 1), "a"),
        (("a", 3), ("0_a", 2), "a"),
        (("2_a", 1), ("a", 3), "2_a"),
        (("2_a", 2), ("a", 3), "2_a"),
    ],
)
def test_no_request_has_the_name_of_anothers_child(
    here: tuple[str, int], comes: tuple[str, int], twin: str
) -> None:
    scheduler = small(num_blocks=64)
    scheduler.submit(ask(here[0], 3, n=here[1]), 0.0)
    with pytest.raises(RequestError) as refusal:
        scheduler.submit(ask(comes[0], 3, n=comes[1]), 0.0)
    told = f"request {comes[0]!r} would share a name with one of {twin!r}"
    assert str(refusal.value) == told
    scheduler.abort(here[0], 0.0)
    scheduler.submit(ask(comes[0], 3, n=comes[1]), 0.0)


@pytest.mark.parametrize("name", ["3_a", "00_a", "²_a", "_a", "x_a", "0_b", "a_0", "0_0_a"])
def test_a_name_that_only_looks_like_a_childs_is_as_good_as_any(name: str) -> None:
    scheduler = small(num_blocks=64)
    scheduler.submit(ask("a", 3, max_tokens=2, n=3), 0.0)
    scheduler.submit(ask(name, 3, max_tokens=2), 0.0)
    assert len(finish_all(scheduler)[name]) == 2


# -- ends --------------------------------------------------------------------


def test_the_end_of_a_child_frees_what_it_alone_holds() -> None:
    scheduler = forked(3, stop_token_ids=(STOP,))  # 2 blocks for all, and 1 for each
    assert scheduler.snapshot()["free_blocks"] == 16 - 5
    told = commit(scheduler, scheduler.plan(0.0), **{"1_a": [STOP]})
    assert told["1_a"] == {"tokens": [STOP], "finish": "stop"}
    assert "a" not in told
    assert scheduler.snapshot()["free_blocks"] == 16 - 4
    assert list(state(scheduler, "a")["children"]) == ["0", "2"]
    assert list(step(scheduler)["tokens"]) == ["0_a", "2_a"]


def test_the_first_child_may_end_before_the_others() -> None:
    scheduler = forked(3, stop_token_ids=(STOP,))
    step(scheduler, **{"0_a": [STOP]})
    assert scheduler.snapshot()["free_blocks"] == 16 - 4
    assert scheduler.snapshot()["running"] == ["a"]
    assert "RUNNING" in scheduler.explain("a")
    assert set(finish_all(scheduler)) == {"1_a", "2_a", "a"}


def test_the_request_ends_with_its_last_child() -> None:
    scheduler = forked(2, stop_token_ids=(STOP,))
    step(scheduler, **{"1_a": [STOP]})
    plan = scheduler.plan(0.0)
    outputs = scheduler.commit(plan, answer(plan, {"0_a": [STOP]}), 0.0)
    assert [(end.child, end.finish, end.stop_token) for end in outputs.finished] == [
        (0, Finish.STOP, STOP),
        (-1, Finish.STOP, None),
    ]
    assert scheduler.idle
    assert scheduler.snapshot()["free_blocks"] == 16
    assert scheduler.plan(0.0).finished == ("a",)


def test_two_ends_in_one_step_are_two() -> None:
    scheduler = forked(3, stop_token_ids=(STOP,))
    told = commit(scheduler, scheduler.plan(0.0), **{"0_a": [STOP], "2_a": [STOP]})
    assert [label for label, one in told.items() if one["finish"]] == ["0_a", "2_a"]
    assert len(scheduler.plan(0.0).rows) == 1


@DEPTHS
def test_each_end_is_told_once(depth: int) -> None:
    asked = ask("a", 6, max_tokens=12, n=4, seed=3, stop_token_ids=tuple(range(0, VOCAB, 6)))
    pipeline = run(small(num_blocks=32), asked, depth=depth)
    assert sorted(pipeline.ends) == ["0_a", "1_a", "2_a", "3_a", "a"]
    assert {len(ends) for ends in pipeline.ends.values()} == {1}
    assert pipeline.got | children(asked) == pipeline.got
    assert len({len(tokens) for tokens in children(asked).values()}) > 1, "they end apart"


# -- aborts ------------------------------------------------------------------


def test_an_abort_frees_everything() -> None:
    scheduler = forked(3)
    assert scheduler.abort("a", 0.0)
    scheduler.check()
    assert scheduler.snapshot()["free_blocks"] == 16
    assert scheduler.state.table.vacant == 4
    assert not scheduler.abort("a", 0.0)
    plan = scheduler.plan(0.0)
    assert (plan.finished, len(plan.released)) == (("a",), 3)


def test_an_abort_with_a_step_in_flight_tells_nothing() -> None:
    scheduler = forked(3)
    plan = scheduler.plan(0.0)
    scheduler.abort("a", 0.0)
    outputs = scheduler.commit(plan, answer(plan), 0.0)
    assert (outputs.to_dict(), outputs.finished) == ({}, ())
    assert scheduler.stats.stale_rows == 3


def test_an_abort_before_the_fork_gives_the_kept_slots_back() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 6, n=3), 0.0)
    plan = scheduler.plan(0.0)
    assert scheduler.state.table.vacant == 1
    scheduler.abort("a", 0.0)
    scheduler.check()
    assert scheduler.state.table.vacant == 4
    assert commit(scheduler, plan) == {}


def test_an_abort_between_the_fork_and_its_plan_is_possible_at_any_point() -> None:
    for steps in range(6):
        scheduler = small()
        scheduler.submit(ask("a", 6, max_tokens=3, n=3), 0.0)
        pipeline = Pipeline(scheduler, 2)
        for _ in range(steps):
            pipeline.launch()
            if len(pipeline.flight) == 2:
                pipeline.land()
        scheduler.abort("a", 0.0)
        scheduler.check()
        pipeline.run()
        assert scheduler.snapshot()["free_blocks"] == 16
        assert pipeline.ends.get("a", ["length"]) == ["length"]


def test_an_abort_of_one_that_waits_or_is_parked() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 6, n=3), 0.0)
    scheduler.submit(ask("b", 6, n=3), 0.0, parked="grammar")
    assert scheduler.abort("a", 0.0)
    assert scheduler.abort("b", 0.0)
    scheduler.check()
    assert scheduler.idle


def test_children_that_have_ended_are_not_told_of_again() -> None:
    scheduler = forked(3, stop_token_ids=(STOP,))
    step(scheduler, **{"1_a": [STOP]})
    plan = scheduler.plan(0.0)
    told = scheduler.fail(plan, 0.0, "out of memory")
    assert [(end.child, end.finish) for end in told.finished] == [
        (0, Finish.ERROR),
        (2, Finish.ERROR),
        (-1, Finish.ERROR),
    ]
    assert {end.message for end in told.finished} == {"out of memory"}
    assert scheduler.idle


def test_a_family_whose_deadline_passed_in_the_queue_ends_once_for_each() -> None:
    scheduler = small(policy="deadline", refuse_late=True)
    scheduler.submit(ask("a", 3, n=2, deadline=1.0), 0.0)
    plan = scheduler.plan(5.0)
    ends = scheduler.commit(plan, answer(plan), 5.0).finished
    assert [(end.child, end.finish) for end in ends] == [
        (0, Finish.TIMEOUT),
        (1, Finish.TIMEOUT),
        (-1, Finish.TIMEOUT),
    ]


# -- preemption --------------------------------------------------------------


def tight(mode: str = "recompute", **settings: Any) -> Scheduler:
    space = {"preemption_mode": mode, "swap_space": 0 if mode == "recompute" else 16}
    few = {"num_blocks": 11, "max_num_seqs": 5, "max_num_batched_tokens": 9}
    return small(**few | space | settings)


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
    assert {child["state"] for child in each(scheduler)} == {"PREEMPTED"}
    assert {child["preemptions"] for child in each(scheduler)} == {1}
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
    assert {child["state"] for child in each(scheduler)} == {"SWAPPED"}
    assert scheduler.snapshot()["swapped"] == ["a"]
    assert scheduler.snapshot()["host_free_blocks"] == 3
    plan = step(scheduler)
    assert plan["resumed"] == ["0_a", "1_a", "2_a"]
    assert len(plan["swap_in"]) == 2 + 3
    tables = [child["blocks"][0] for child in each(scheduler)]
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


def test_a_fork_that_lacks_blocks_makes_somebody_give_way() -> None:
    """They were there when the family came in, and "b" has taken them since."""
    scheduler = small(num_blocks=6, max_num_batched_tokens=5, max_num_seqs=3)
    scheduler.submit(ask("a", 14, max_tokens=1, n=2), 0.0)
    scheduler.submit(ask("b", 5, max_tokens=3), 0.0)
    plans = [step(scheduler) for _ in range(4)]
    assert [plan["tokens"] for plan in plans] == [
        {"0_a": 5},
        {"0_a": 5},
        {"0_a": 3, "b": 2},
        {"0_a": 1, "1_a": 1},
    ]
    assert (plans[3]["preempted"], plans[3]["new"]) == (["b"], ["1_a"])
    assert "for want of 1 block for 'a'" in scheduler.explain("b")
    assert len(finish_all(scheduler)["b"]) == 3


def test_a_fork_waits_for_blocks_that_steps_in_flight_set_free() -> None:
    """ "b" has gone to the host, and its blocks are still being copied."""
    scheduler = small(
        num_blocks=8,
        max_num_batched_tokens=10,
        max_num_seqs=3,
        preemption_mode="swap",
        swap_space=4,
    )
    scheduler.submit(ask("a", 22, max_tokens=1, n=2), 0.0)
    scheduler.submit(ask("b", 5, max_tokens=3), 0.0)
    for _ in range(3):
        step(scheduler)
    plan = scheduler.plan(0.0)
    assert (plan.preempted, len(plan.swap_out), len(plan.rows)) == (("b",), 2, 0)
    assert scheduler.plan(0.0).empty
    commit(scheduler, plan)
    assert step(scheduler)["tokens"] == {"0_a": 1, "1_a": 1}


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


def test_a_family_can_be_parked_and_woken() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 6, n=2), 0.0)
    assert scheduler.park("a", "grammar", 0.0)
    assert step(scheduler)["tokens"] == {}
    assert scheduler.wake("a", 0.0)
    assert set(finish_all(scheduler)) == {"0_a", "1_a", "a"}


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


def test_an_arrival_displaces_a_family_as_a_whole() -> None:
    scheduler = small(policy="priority", preempt_on_arrival=True, max_num_seqs=3)
    scheduler.submit(ask("a", 5, max_tokens=9, n=3, priority=5), 0.0)
    step(scheduler)
    step(scheduler)
    scheduler.submit(ask("good", 5, priority=1), 0.0)
    plan = step(scheduler)
    assert (plan["preempted"], plan["new"], plan["tokens"]) == (["a"], ["good"], {"good": 5})
    assert len(finish_all(scheduler)["2_a"]) == 8


def test_a_better_family_displaces_as_many_as_it_needs_slots() -> None:
    scheduler = small(policy="priority", preempt_on_arrival=True, max_num_seqs=3)
    for name, priority in (("x", 5), ("y", 4), ("z", 3)):
        scheduler.submit(ask(name, 3, max_tokens=9, priority=priority), 0.0)
    step(scheduler)
    scheduler.submit(ask("good", 5, max_tokens=2, n=2, priority=1), 0.0)
    plan = step(scheduler)
    assert (plan["preempted"], plan["new"]) == (["x", "y"], ["0_good"])


def test_a_family_is_displaced_once_however_many_of_its_slots_are_wanted() -> None:
    scheduler = small(policy="priority", preempt_on_arrival=True, max_num_seqs=3)
    scheduler.submit(ask("a", 5, max_tokens=9, n=3, priority=5), 0.0)
    step(scheduler)
    step(scheduler)
    scheduler.submit(ask("good", 5, max_tokens=2, n=2, priority=1), 0.0)
    plan = step(scheduler)
    assert (plan["preempted"], plan["new"]) == (["a"], ["0_good"])
    assert scheduler.stats.preemptions == 1


# -- the best of several -----------------------------------------------------


@DEPTHS
@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_the_likeliest_are_returned_and_nothing_is_told_before(depth: int, mode: str) -> None:
    scheduler = tight(mode)
    asked = ask("a", 6, max_tokens=8, n=2, best_of=3, seed=7, stop_token_ids=tuple(range(0, 50, 9)))
    other = ask("b", 5, max_tokens=12)
    pipeline = run(scheduler, asked, other, depth=depth)
    assert pipeline.choices == {"a": best_of(asked, VOCAB, LENGTH)}
    assert pipeline.got == {"a": [], "b": reference(other, VOCAB, LENGTH)[0]}
    assert pipeline.ends.keys() == {"a", "b"}


def likely(plan: Plan, tokens: dict[str, int], scores: dict[str, float]) -> StepResult:
    return StepResult.of(
        plan,
        {label: [tokens.get(label, 9)] for label in sampling(plan)},
        logprobs={label: [scores.get(label, -1.0)] for label in sampling(plan)},
    )


def test_the_choices_come_best_first_with_their_scores() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 5, max_tokens=2, n=2, best_of=3, stop_token_ids=(STOP,)), 0.0)
    step(scheduler)
    first = scheduler.plan(0.0)
    outputs = scheduler.commit(first, likely(first, {"2_a": STOP}, {"2_a": -0.5, "1_a": -0.1}), 0.0)
    assert (outputs.to_dict(), outputs.finished) == ({}, ())
    last = scheduler.plan(0.0)
    assert last.rows.labels == ["0_a", "1_a"]
    (end,) = scheduler.commit(last, likely(last, {}, {"1_a": -0.3}), 0.0).finished
    assert (end.request_id, end.child, end.finish) == ("a", -1, Finish.LENGTH)
    assert [(one.tokens, one.finish, one.stop_token) for one in end.choices] == [
        ((9, 9), Finish.LENGTH, None),
        ((STOP,), Finish.STOP, STOP),
    ]
    assert [round(one.score, 6) for one in end.choices] == [-0.2, -0.5]


def test_a_best_of_all_is_told_as_it_goes() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 5, max_tokens=2, n=2, best_of=2), 0.0)
    step(scheduler)
    assert commit(scheduler, scheduler.plan(0.0)).keys() == {"0_a", "1_a"}


def test_an_aborted_search_for_the_best_has_no_choices() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 5, max_tokens=5, best_of=3), 0.0)
    step(scheduler)
    plan = scheduler.plan(0.0)
    ends = scheduler.fail(plan, 0.0).finished
    assert [(end.child, end.finish, end.choices) for end in ends] == [(-1, Finish.ERROR, ())]


def test_a_result_without_log_probabilities_is_refused_by_row() -> None:
    scheduler = small()
    scheduler.submit(ask("b", 3), 0.0)
    scheduler.submit(ask("a", 5, max_tokens=5, best_of=3), 0.0)
    step(scheduler)
    plan = scheduler.plan(0.0)
    before = scheduler.snapshot()
    with pytest.raises(StepError, match=r"^step 2: '0_a' asked for log-probabilities$"):
        scheduler.commit(plan, answer(plan), 0.0)
    assert scheduler.snapshot() == before
    scheduler.commit(plan, likely(plan, {}, {}), 0.0)
    assert state(scheduler, "b")["known"] == 5


@pytest.mark.parametrize("shape", [(2, 1), (3,), (3, 0), (4, 1), (3, 1, 1)])
def test_log_probabilities_of_another_shape_are_none(shape: tuple[int, ...]) -> None:
    scheduler = small()
    scheduler.submit(ask("a", 5, max_tokens=5, best_of=3), 0.0)
    step(scheduler)
    plan = scheduler.plan(0.0)
    told = replace(answer(plan), logprob=np.zeros(shape, np.float32))
    with pytest.raises(StepError, match="'0_a' asked for log-probabilities"):
        scheduler.commit(plan, told, 0.0)
    scheduler.commit(plan, likely(plan, {}, {}), 0.0)
    scheduler.check()


def test_no_log_probabilities_are_due_for_a_row_that_does_not_sample() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 5, max_tokens=5, best_of=3), 0.0)
    plan = scheduler.plan(0.0)
    assert scheduler.commit(plan, answer(plan), 0.0).to_dict() == {}


# -- beams -------------------------------------------------------------------


def beams(name: str = "a", prompt: int = 6, **fields: Any) -> Request:
    return ask(name, prompt, **{"max_tokens": 6, "n": 2, "beam_width": 3} | fields)


def ranked(plan: Plan, **told: list[tuple[int, float]]) -> StepResult:
    """Candidates for each row that samples; unless told, four that go on."""
    plain = [(token, -float(token)) for token in range(1, 7)]
    rows = {label: told.get(f"beam_{label[0]}", plain) for label in sampling(plan)}
    return StepResult.of(plan, {label: [9] for label in rows}, candidates=rows)


def searching(**fields: Any) -> Scheduler:
    """Three beams that have computed the prompt."""
    scheduler = small()
    scheduler.submit(beams(**fields), 0.0)
    step(scheduler)
    return scheduler


def outputs_of(scheduler: Scheduler, name: str = "a") -> list[list[int]]:
    """What each beam has generated, by index."""
    at = scheduler.state
    family = at.families[name]
    prompt = len(family.request.prompt)
    known = at.table.known
    return [at.table.tokens[one.slot, prompt : known[one.slot]].tolist() for one in family.members]


def test_all_beams_come_from_the_first_at_first() -> None:
    scheduler = searching()
    plan = scheduler.plan(0.0)
    assert plan.rows.labels == ["0_a", "1_a", "2_a"]
    outputs = scheduler.commit(plan, ranked(plan), 0.0)
    scheduler.check()
    assert (outputs.to_dict(), outputs_of(scheduler)) == ({}, [[1], [2], [3]])
    assert scheduler.plan(0.0).chosen == tuple(
        (one.slot, token)
        for one, token in zip(scheduler.state.families["a"].members, (1, 2, 3), strict=True)
    )


def test_a_beam_that_dies_goes_on_from_another() -> None:
    scheduler = searching()
    plan = scheduler.plan(0.0)
    scheduler.commit(plan, ranked(plan), 0.0)
    plan = scheduler.plan(0.0)
    best = [(7, -0.1), (8, -0.2), (4, -0.3), (5, -9.0), (6, -9.0), (3, -9.0)]
    scheduler.commit(plan, ranked(plan, beam_1=best), 0.0)
    scheduler.check()
    assert outputs_of(scheduler) == [[1, 1], [2, 7], [2, 8]]
    slots = [one.slot for one in scheduler.state.families["a"].members]
    plan = scheduler.plan(0.0)
    assert plan.released == (slots[2],)
    ((source, target),) = plan.copies
    assert [scheduler.state.cache.tables.blocks(slot)[1] for slot in slots][1:] == [
        source,
        target,
    ]
    (again,) = plan.admitted
    assert (again.request.id, again.computed, again.resumed) == ("2_a", 7, True)
    assert again.tokens.tolist()[6:] == [2]
    assert dict(plan.chosen) == dict(zip(slots, (1, 7, 8), strict=True))


def test_beams_share_all_but_the_block_being_written() -> None:
    scheduler = small(num_blocks=64)
    scheduler.submit(beams(prompt=9, max_tokens=12, beam_width=4, eos_token_ids=()), 0.0)
    pipeline = Pipeline(scheduler, 1, vocab=20)
    most = 0
    while not scheduler.idle:
        plan = pipeline.launch()
        assert len(plan.copies) <= 3
        pipeline.land()
        most = max(most, len(plan.copies))
    assert most == 3
    assert scheduler.stats.copied_blocks >= 5
    assert scheduler.snapshot()["free_blocks"] == 64


@DEPTHS
def test_beams_run_in_lockstep_and_the_others_ahead(depth: int) -> None:
    scheduler = small(num_blocks=64)
    scheduler.submit(beams(prompt=5, max_tokens=9), 0.0)
    scheduler.submit(ask("b", 5, max_tokens=20), 0.0)
    pipeline = Pipeline(scheduler, depth)
    for _ in range(depth):
        pipeline.launch()
    planned = [plan.to_dict()["tokens"] for plan in pipeline.plans]
    assert [tokens.get("b") for tokens in planned] == [5, 1, 1, 1][:depth]
    assert [tokens.get("0_a") for tokens in planned] == [4, 1, None, None][:depth]
    pipeline.run()
    assert pipeline.choices["a"] == [
        list(choice.tokens) for choice in beam_search(beams(prompt=5, max_tokens=9), VOCAB, LENGTH)
    ]


def test_beams_draft_nothing() -> None:
    scheduler = small(num_blocks=64, num_speculative_tokens=3, speculation="fixed")
    asked = beams(max_tokens=9)
    pipeline = run(scheduler, asked, ask("b", 5, max_tokens=9), depth=2)
    drafted = {label for plan in pipeline.plans for label in plan.to_dict()["drafts"]}
    assert drafted == {"b"}
    assert pipeline.choices["a"] == [list(one.tokens) for one in beam_search(asked, VOCAB, LENGTH)]


def test_the_end_of_a_search_tells_its_choices_once() -> None:
    scheduler = searching(early_stopping=True, eos_token_ids=(0,))
    plan = scheduler.plan(0.0)
    scheduler.commit(plan, ranked(plan), 0.0)
    plan = scheduler.plan(0.0)
    stops = [(0, -0.1), (1, -0.5), (2, -9.0), (3, -9.0), (4, -9.0), (5, -9.0)]
    outputs = scheduler.commit(plan, ranked(plan, beam_0=stops, beam_1=stops, beam_2=stops), 0.0)
    assert outputs.finished == ()  # one end of three: others are better and go on
    plan = scheduler.plan(0.0)
    outputs = scheduler.commit(plan, ranked(plan, beam_0=stops, beam_1=stops, beam_2=stops), 0.0)
    (end,) = outputs.finished
    scheduler.check()
    assert (end.request_id, end.child, end.finish) == ("a", -1, Finish.STOP)
    assert len(end.choices) == 2
    assert all(one.stop_token == 0 and one.tokens[-1] == 0 for one in end.choices)
    assert end.choices[0].score >= end.choices[1].score
    assert scheduler.idle
    assert scheduler.snapshot()["free_blocks"] == 16
    assert scheduler.plan(0.0).finished == ("a",)


def test_a_result_without_candidates_is_refused_by_row() -> None:
    scheduler = searching()
    plan = scheduler.plan(0.0)
    before = scheduler.snapshot()
    complaint = r"^step 2: '0_a' asked for candidates$"
    with pytest.raises(StepError, match=complaint):
        scheduler.commit(plan, answer(plan), 0.0)
    told = StepResult.of(
        plan, {label: [9] for label in sampling(plan)}, candidates={"1_a": [(5, -1)]}
    )
    with pytest.raises(StepError, match=complaint):
        scheduler.commit(plan, told, 0.0)
    assert scheduler.snapshot() == before
    scheduler.commit(plan, ranked(plan), 0.0)
    scheduler.check()
    assert outputs_of(scheduler) == [[1], [2], [3]]


@pytest.mark.parametrize(("ids", "logprob"), [((2, 6), (2, 6)), ((3, 6), (3, 5)), ((3, 0), (3, 0))])
def test_candidates_of_another_shape_are_none(
    ids: tuple[int, ...], logprob: tuple[int, ...]
) -> None:
    scheduler = searching()
    plan = scheduler.plan(0.0)
    found = Candidates(np.zeros(ids, np.int32), np.zeros(logprob, np.float32))
    with pytest.raises(StepError, match="'0_a' asked for candidates"):
        scheduler.commit(plan, replace(answer(plan), candidates=found), 0.0)
    scheduler.commit(plan, ranked(plan), 0.0)
    scheduler.check()


def test_log_probabilities_alone_are_not_candidates() -> None:
    scheduler = searching()
    plan = scheduler.plan(0.0)
    with pytest.raises(StepError, match="asked for candidates"):
        scheduler.commit(plan, likely(plan, {}, {}), 0.0)


def test_an_abort_between_the_steps_of_a_search() -> None:
    for steps in range(5):
        scheduler = small()
        scheduler.submit(beams(), 0.0)
        pipeline = Pipeline(scheduler, 1)
        for _ in range(steps):
            pipeline.launch()
            pipeline.land()
        assert scheduler.abort("a", 0.0)
        scheduler.check()
        pipeline.run()
        assert scheduler.snapshot()["free_blocks"] == 16
        assert pipeline.choices == {}


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_a_search_gives_way_when_only_some_of_its_beams_have_told_their_candidates(
    mode: str,
) -> None:
    """The prompt of another leaves room for one row in each step."""
    scheduler = small(
        max_num_seqs=4,
        max_num_batched_tokens=4,
        long_prefill_token_threshold=3,
        preemption_mode=mode,
        swap_space=8,
    )
    asked = beams(prompt=1, beam_width=2, max_tokens=5)
    scheduler.submit(ask("long", 30, max_tokens=2), 0.0)
    scheduler.submit(asked, 0.0)
    pipeline = Pipeline(scheduler, 1)
    for _ in range(3):
        pipeline.launch()
        pipeline.land()
    assert len(scheduler.state.families["a"].reports) == 1
    preempt(scheduler, "a")
    scheduler.check()
    assert state(scheduler, "a")["state"] == ("SWAPPED" if mode == "swap" else "PREEMPTED")
    pipeline.run()
    assert pipeline.choices["a"] == [list(one.tokens) for one in beam_search(asked, VOCAB, LENGTH)]


SWAPPED = {"num_blocks": 14, "preemption_mode": "swap", "swap_space": 32}
SETTINGS: dict[str, dict[str, Any]] = {
    "calm": {"num_blocks": 64},
    "preempted": {"num_blocks": 14},
    "swapped": SWAPPED,
    "swapped without a cache": {**SWAPPED, "enable_prefix_caching": False},
}


def searches(seed: int, vocab: int) -> list[Request]:
    """Two beam searches and others beside them."""
    r = Random(seed)
    found: list[Request] = []
    for name in "ab":
        width = r.randint(2, 4)
        found.append(
            beams(
                name,
                r.randint(1, 9),
                n=r.randint(1, width),
                beam_width=width,
                max_tokens=r.randint(4, 10),
                length_penalty=r.choice([1.0, 0.0, -0.5, 2.0]),
                early_stopping=r.choice([True, False, "never"]),
                eos_token_ids=tuple(r.randrange(vocab) for _ in range(r.randint(0, 1))),
                stop_token_ids=tuple(r.randrange(vocab) for _ in range(r.randint(0, 2))),
                min_tokens=r.choice([0, 3]),
            )
        )
    others = ask("c", 6, max_tokens=20), ask("d", 5, max_tokens=12, n=2, seed=seed)
    return [others[0], found[0], others[1], found[1]]


def race(name: str, seed: int, vocab: int, depth: int) -> Pipeline:
    discipline = ("unified", "prefill_first")[seed % 2]
    scheduler = small(
        **SETTINGS[name], max_num_seqs=8, max_num_batched_tokens=9, discipline=discipline
    )
    return run(scheduler, *searches(seed, vocab), depth=depth, vocab=vocab)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("vocab", [2, 20])
@pytest.mark.parametrize("name", SETTINGS)
@DEPTHS
def test_beams_are_those_of_the_reference(seed: int, vocab: int, name: str, depth: int) -> None:
    pipeline = race(name, seed, vocab, depth)
    for one in searches(seed, vocab):
        if one.beam_width:
            found = beam_search(one, vocab, LENGTH)
            assert pipeline.choices[one.id] == [list(choice.tokens) for choice in found]
            assert pipeline.ends[one.id] == [found[0].finish.value]
            assert not pipeline.got[one.id]
        elif one.width == 1:
            assert pipeline.got[one.id] == reference(one, vocab, LENGTH)[0]
    assert pipeline.scheduler.snapshot()["free_blocks"] == SETTINGS[name]["num_blocks"]


@pytest.mark.parametrize("name", [name for name in SETTINGS if name != "calm"])
def test_and_in_those_runs_they_do_give_way(name: str) -> None:
    seen: Counter[str] = Counter()
    for seed in range(4):
        pipeline = race(name, seed, vocab=20, depth=1)
        seen.update(pipeline.scheduler.stats.to_dict())
        seen.update(name for plan in pipeline.plans for name in plan.preempted)
    assert seen["a"] + seen["b"] > 2
    assert (seen["swapped_out_blocks"] > 3) == ("swapped" in name)


def test_a_family_that_never_fits_is_refused_at_the_edge_of_a_block() -> None:
    """The last token of the prompt is computed by each, so its block is not shared."""
    small(num_blocks=4).submit(ask("a", 4, max_tokens=5, n=2), 0.0)
    with pytest.raises(RequestError, match="need 4 blocks"):
        small(num_blocks=3).submit(ask("a", 4, max_tokens=5, n=2), 0.0)


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
