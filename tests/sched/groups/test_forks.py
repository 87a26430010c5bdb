"""How members of a family come from one another: what they share, take and copy."""

from typing import Any

import pytest

from paceline import Plan, Scheduler
from paceline.core.events import Happened
from paceline.kv.hit import MISS
from paceline.sched.groups.forks import Forks
from paceline.sched.groups.group import SequenceGroup
from tests.sched.groups.support import child_states, children, run
from tests.sched.support import (
    DEPTHS,
    ask,
    commit,
    finish_all,
    preempt,
    sequence,
    small,
    state,
    step,
)


def started(
    prompt: int, children: int = 3, **settings: int
) -> tuple[Scheduler, SequenceGroup, Forks]:
    """A family whose leader has been given what all share, before it forks."""
    scheduler = small(**settings)
    scheduler.submit(ask("a", prompt, n=children), 0.0)
    scheduler.plan(0.0)
    return scheduler, scheduler.state.sequence_groups["a"], Forks(scheduler.components)


# -- when --------------------------------------------------------------------


def test_a_family_forks_when_all_that_it_shares_was_handed_out() -> None:
    scheduler, family, forks = started(6)
    assert forks.due() == [family]
    assert scheduler.state.sequence_groups.forking == {"a": family}


def test_and_not_while_its_prompt_is_in_pieces() -> None:
    scheduler, family, forks = started(9, max_num_batched_tokens=4)
    assert forks.due() == []
    scheduler.plan(0.0)
    assert forks.due() == [family]


def test_several_that_are_due_fork_oldest_first() -> None:
    scheduler = small()
    for name in "ba":
        scheduler.submit(ask(name, 5, n=2), 0.0)
    scheduler.plan(0.0)
    assert [one.request.id for one in Forks(scheduler.components).due()] == ["b", "a"]


@pytest.mark.parametrize(
    ("prompt", "cached", "expected"),
    [
        (1, 0, True),  # there is nothing to share
        (9, 8, True),  # all of it is there, and ends with a block
        (9, 4, False),
        (9, 0, False),
        (10, 8, False),  # the ninth position would have to be copied
    ],
)
def test_a_family_forks_as_it_is_admitted_if_nothing_has_to_be_copied(
    prompt: int, cached: int, expected: bool
) -> None:
    scheduler = small()
    if cached:
        scheduler.submit(ask("first", range(cached + 1), max_tokens=1), 0.0)
        finish_all(scheduler)
    scheduler.submit(ask("a", range(prompt), n=2), 0.0)
    at = scheduler.state
    leader = sequence(scheduler, "a")
    hit = at.prefixes.lookup(leader)
    assert hit.tokens == cached
    assert Forks(scheduler.components).at_once(at.sequence_groups["a"], hit) == expected
    assert (len(scheduler.plan(0.0).rows) == 2) == expected


# -- what it takes -----------------------------------------------------------


def test_every_fork_takes_a_block_of_its_own() -> None:
    _, family, forks = started(6)
    assert forks.need(family) == 2


def test_with_room_for_more_it_takes_the_blocks_of_that() -> None:
    """Of nine tokens two blocks are shared and one is not; of fourteen two are not."""
    _, family, forks = started(9)
    assert forks.need(family, lambda one: len(one.tokens)) == 2
    assert forks.need(family, lambda one: 14) == 2 * 2


def test_what_a_member_still_finds_of_its_own_is_not_taken_again() -> None:
    """Of fourteen tokens each finds twelve: a block of the prompt, and two of its own."""
    scheduler = small()
    scheduler.submit(ask("a", 5, max_tokens=12, n=2), 0.0)
    step(scheduler)
    for _ in range(9):
        step(scheduler, **{"0_a": [1], "1_a": [2]})
    at = scheduler.state
    preempt(scheduler, "a")
    family, forks = at.sequence_groups["a"], Forks(scheduler.components)
    other = family.members[1]
    assert at.prefixes.lookup(other).tokens == 12
    found = at.prefixes.lookup(family.leader)
    assert forks.need(family, lambda one: len(one.tokens), found) == 1 + 2
    assert forks.need(family, lambda one: len(one.tokens), MISS) == 1 + 3


# -- forking -----------------------------------------------------------------


@pytest.mark.parametrize(("prompt", "copies"), [(6, 2), (8, 2), (5, 0), (9, 0)])
def test_forks_share_full_blocks_and_copy_the_one_being_written(prompt: int, copies: int) -> None:
    scheduler, family, forks = started(prompt)
    at = scheduler.state
    free, leader = at.cache.pool.free, family.leader.slot
    forks.fork(family)
    scheduler.check()
    assert free - at.cache.pool.free == 2
    full = (prompt - 1) // 4
    tables = [at.cache.tables.blocks(one.slot) for one in family.members]
    assert all(table[:full] == tables[0][:full] for table in tables)
    assert len({table[full] for table in tables}) == 3
    assert [len(pairs) for _, pairs in at.changes.copies] == [copies // 2] * 2
    sources = [source for _, pairs in at.changes.copies for source, _ in pairs]
    assert sources == [at.cache.tables.blocks(leader)[full]] * copies


def test_the_runner_is_told_of_each_fork_as_of_a_request() -> None:
    scheduler, family, forks = started(6)
    forks.fork(family)
    new = scheduler.state.changes.admitted
    assert [one.request.id for one in new] == ["1_a", "2_a"]
    assert [one.computed for one in new] == [5, 5]
    assert [one.slot for one in new] == [one.slot for one in family.members[1:]]
    assert not any(one.resumed for one in new)
    assert all(one.tokens.tolist() == family.request.prompt.tolist() for one in new)


def test_forks_stand_behind_their_leader_and_before_those_who_came_later() -> None:
    scheduler = small()
    for name, number in (("a", 2), ("b", 1)):
        scheduler.submit(ask(name, 5, n=number), 0.0)
    step(scheduler)
    plan = step(scheduler)
    assert list(plan["tokens"]) == ["0_a", "1_a", "b"]
    at = scheduler.state
    assert [at.table.sequence(slot).label for slot in at.table.order] == ["0_a", "1_a", "b"]


def test_a_fork_is_counted_and_told_once() -> None:
    scheduler, family, forks = started(6)
    forks.fork(family)
    assert scheduler.stats.forks == 2
    told = [moment for moment in family.leader.life if moment.happened is Happened.FORKED]
    assert [(moment.amount, moment.step) for moment in told] == [(3, 1)]
    assert (scheduler.state.sequence_groups.forking, family.kept, forks.due()) == ({}, [], [])


def test_the_leader_goes_on_when_all_have_forked() -> None:
    scheduler, family, forks = started(6)
    table, slot = scheduler.state.table, family.leader.slot
    assert table.remaining(table.order).tolist() == [0]
    forks.fork(family)
    assert table.remaining(table.order).tolist() == [1, 1, 1]
    assert table.ceiling[slot] == family.leader.limit - 1


def test_beams_go_no_further_than_they_know() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 6, beam_width=2), 0.0)
    scheduler.plan(0.0)
    scheduler.plan(0.0)
    table = scheduler.state.table
    assert table.planned[table.order].tolist() == table.known[table.order].tolist() == [6, 6]
    assert table.remaining(table.order).tolist() == [0, 0]


def test_a_copy_is_listed_in_the_plan_that_first_writes_behind_it() -> None:
    scheduler, family, _ = started(6)
    plan = scheduler.plan(0.0)
    source = scheduler.state.cache.tables.blocks(family.leader.slot)[1]
    assert [pair[0] for pair in plan.copies] == [source] * 2
    assert plan.start.tolist() == [5, 5, 5]
    assert scheduler.stats.copied_blocks == 2
    assert scheduler.plan(0.0).copies == ()


def test_both_ends_of_a_copy_are_fenced_until_its_step_has_run() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 6, n=3), 0.0)
    step(scheduler)
    plan = scheduler.plan(0.0)
    scheduler.abort("a", 0.0)
    scheduler.check()
    assert scheduler.snapshot()["free_blocks"] == 16 - 3
    commit(scheduler, plan)
    assert scheduler.snapshot()["free_blocks"] == 16


def test_a_fork_waits_for_as_many_blocks_as_it_needs() -> None:
    """One is being copied to the host, and one is all that the second child lacks."""
    scheduler = small(num_blocks=3, preemption_mode="swap", swap_space=8)
    scheduler.submit(ask("a", 5, max_tokens=2, n=2), 0.0)
    scheduler.submit(ask("b", 3, max_tokens=2), 0.0)
    step(scheduler)
    preempt(scheduler, "b")
    assert step(scheduler)["preempted"] == ["b"]
    assert scheduler.snapshot()["running"] == ["a"]
    assert set(step(scheduler)["tokens"]) == {"0_a", "1_a"}


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
    tables = [child["blocks"][0] for child in child_states(scheduler)]
    assert all(table[:shared] == tables[0][:shared] for table in tables)
    assert len({table[shared] for table in tables}) == number


def test_a_copy_goes_from_the_leader_to_each_of_the_others() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 6, n=3), 0.0)
    step(scheduler)
    plan = step(scheduler)
    first, second, third = (child["blocks"][0][1] for child in child_states(scheduler))
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
