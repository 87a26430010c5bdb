"""Who is let in, how much each gets, and what is said when somebody is not."""

from typing import Any

import numpy as np
import pytest

from paceline import Scheduler
from paceline.core.arrays import NO_I32
from paceline.kv.hit import MISS
from paceline.sched.admission.admission import Admission, Joining
from paceline.sched.admission.entrants import Entrants
from paceline.sched.admission.gates import Gates
from paceline.sched.admission.limits import Limits
from paceline.sched.admission.rows import ArrivalRow
from paceline.sched.admission.step_room import StepRoom
from paceline.sched.composition import NOTHING, Composition, JoiningRow
from paceline.sched.discipline import Discipline
from paceline.sched.groups.forks import Forks
from tests.sched import constant_steps as steps
from tests.sched.support import (
    DISCIPLINES,
    ask,
    commit,
    crowded,
    finish_all,
    gate,
    preempt,
    sequence,
    small,
    state,
    step,
)

GATES = Discipline.gates


def admission(scheduler: Scheduler) -> Admission:
    """With the gates of the product, and no limits but those of the chunk that is passed."""
    components, inner, config = scheduler.components, scheduler.state, scheduler.config
    limits, gates = Limits((), config, inner), Gates(GATES, config, inner)
    return Admission(config, components, Forks(components), limits, gates)


def makes(scheduler: Scheduler) -> Entrants:
    inner, config = scheduler.state, scheduler.config
    return Entrants(config, inner, Forks(scheduler.components), Limits((), config, inner))


def whole(row: ArrivalRow) -> int:
    return row.rest if row.rest <= row.left else 0


# -- those who join ----------------------------------------------------------


def test_rows_of_those_who_join_count_down_the_budget() -> None:
    joining = Joining(StepRoom(vacant=4, left=10, free=8, first=True), whole)
    joining.add(slot=3, start=4, count=6)
    assert (joining.room.left, joining.room.first) == (4, False)
    assert joining.rows == [JoiningRow(3, 4, 6)]


def test_a_chunk_depends_on_what_is_left_and_on_who_was_before() -> None:
    seen: list[tuple[int, int, bool]] = []

    def chunk(row: ArrivalRow) -> int:
        seen.append((row.rest, row.left, row.first))
        return min(row.rest, row.left)

    scheduler = small()
    for name, prompt in (("a", 20), ("b", 15)):
        scheduler.submit(ask(name, prompt), 0.0)
    found = admission(scheduler).let_in(NOTHING, 0.0, chunk)
    assert seen == [(20, 32, True), (15, 12, False)]
    assert found.count.tolist() == [20, 12]


# -- letting in --------------------------------------------------------------


def test_those_who_wait_come_in_by_rank_until_one_does_not_fit() -> None:
    scheduler = small()
    for name, prompt in (("a", 10), ("b", 10), ("c", 20), ("d", 1)):
        scheduler.submit(ask(name, prompt), 0.0)
    found = admission(scheduler).let_in(NOTHING, 0.0, whole)
    assert [new.request.id for new in found.admitted] == ["a", "b"]
    assert (found.slot.tolist(), found.start.tolist(), found.count.tolist()) == (
        [0, 1],
        [0, 0],
        [10, 10],
    )
    assert found.gate is not None
    assert (found.gate.reason, found.gate.request_id, found.gate.short) == ("budget", "c", 8)
    assert scheduler.state.table.planned[:2].tolist() == [10, 10]


def test_nobody_waits_and_nobody_is_let_in() -> None:
    found = admission(small()).let_in(NOTHING, 0.0, whole)
    assert (found.gate, found.admitted, found.slot.tolist()) == (None, (), [])


def test_only_the_swapped_are_let_in_where_only_they_may_return() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 3), 0.0)
    found = admission(scheduler).let_in(NOTHING, 0.0, whole, returning=True)
    assert found.gate is not None
    assert (found.gate.reason, found.gate.request_id, found.admitted) == ("decodes", "a", ())


def test_closed_doors_have_a_reason_if_anybody_stands_there() -> None:
    scheduler = small()
    doors = admission(scheduler)
    assert doors.closed(NOTHING, "paused", 0.0).gate is None
    scheduler.submit(ask("a", 3), 0.0)
    found = doors.closed(NOTHING, "preempted", 0.0, short=2).gate
    assert found is not None
    assert (found.reason, found.request_id, found.short, found.aged) == ("preempted", "a", 2, False)


def test_a_gate_says_whether_its_head_goes_first_because_of_its_age() -> None:
    scheduler = small(policy="priority", ageing_s=5.0, max_num_seqs=1)
    scheduler.submit(ask("old", 3, priority=9), 0.0)
    found = admission(scheduler).closed(NOTHING, "paused", 6.0).gate
    assert found is not None
    assert found.aged


def test_rows_of_newcomers_stand_behind_those_of_residents() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 3), 0.0)
    step(scheduler)
    scheduler.submit(ask("b", 5), 0.0)
    plan = scheduler.plan(0.0)
    assert (plan.rows.labels, plan.rows.count.tolist()) == (["a", "b"], [1, 5])
    assert plan.rows.drafts.tolist() == [0, 0]
    assert NOTHING.joined([], []).count is NO_I32


# -- blocks ------------------------------------------------------------------


def test_a_watermark_is_spared_only_while_somebody_runs() -> None:
    scheduler = small(num_blocks=10, watermark=0.35)
    assert admission(scheduler).spared(residents=0) == 0
    assert admission(scheduler).spared(residents=1) == 3


# -- families ----------------------------------------------------------------


def test_a_family_computes_what_it_shares_before_it_forks() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 9, n=3), 0.0)
    scheduler.submit(ask("b", 9), 0.0)
    entrants = makes(scheduler)
    assert entrants.rest(sequence(scheduler, "a"), MISS) == 8
    assert entrants.rest(sequence(scheduler, "b"), MISS) == 9
    plan = scheduler.plan(0.0)
    assert plan.to_dict()["tokens"] == {"0_a": 8, "b": 9}
    assert plan.rows.samples.tolist() == [False, True]


def test_a_family_needs_slots_for_all_of_it() -> None:
    scheduler = small(max_num_seqs=4)
    for name in "ab":
        scheduler.submit(ask(name, 3, max_tokens=2), 0.0)
    scheduler.submit(ask("c", 3, max_tokens=2, n=3), 0.0)
    assert step(scheduler)["new"] == ["a", "b"]
    assert gate(scheduler) == ("seqs", "c", 1)
    scheduler.submit(ask("d", 3), 0.0)
    step(scheduler)
    assert step(scheduler)["new"] == ["0_c", "d"]


def test_slots_that_are_kept_for_a_family_are_nobody_elses() -> None:
    scheduler = small(max_num_seqs=4, max_num_batched_tokens=4)
    scheduler.submit(ask("a", 9, n=3), 0.0)
    scheduler.submit(ask("b", 1), 0.0)
    scheduler.submit(ask("c", 1), 0.0)
    scheduler.plan(0.0)
    assert scheduler.state.table.vacant == 1
    plans = [scheduler.plan(0.0) for _ in range(2)]
    assert plans[1].to_dict()["new"] == ["1_a", "2_a", "b"]
    assert gate(scheduler) == ("seqs", "c", 1)


@pytest.mark.parametrize(("blocks", "admitted"), [(5, True), (4, False)])
def test_a_family_needs_the_blocks_of_the_prompt_and_one_for_each_fork(
    blocks: int, admitted: bool
) -> None:
    """Nine tokens: three blocks for the first, and one more for each of the other two."""
    scheduler = small(num_blocks=6)
    scheduler.submit(ask("a", 9, max_tokens=1, n=3), 0.0)
    scheduler.state.cache.pool.take(6 - blocks)
    leader = sequence(scheduler, "a")
    assert makes(scheduler).missing(leader, MISS, 8) == 5
    plan = scheduler.plan(0.0)
    assert bool(plan.admitted) == admitted
    assert gate(scheduler) == (None if admitted else ("blocks", "a", 1))


def test_a_family_whose_prompt_is_cached_needs_less() -> None:
    """Two of its three blocks are there, and free: they count, and the forks share them."""
    scheduler = small(num_blocks=8)
    scheduler.submit(ask("first", range(9), max_tokens=1), 0.0)
    finish_all(scheduler)
    scheduler.submit(ask("a", range(9), max_tokens=1, n=3), 0.0)
    leader = sequence(scheduler, "a")
    hit = scheduler.state.prefixes.lookup(leader)
    assert hit.tokens == 8
    assert makes(scheduler).missing(leader, hit, 1) == 3 + 2


def test_a_family_that_comes_back_needs_what_its_members_knew() -> None:
    scheduler = small(num_blocks=8, enable_prefix_caching=False)
    scheduler.submit(ask("a", 5, max_tokens=8, n=2), 0.0)
    step(scheduler)
    for _ in range(5):
        step(scheduler, **{"0_a": [1], "1_a": [2]})
    preempt(scheduler, "a")
    leader = sequence(scheduler, "a")
    assert len(leader.tokens) == 10  # three blocks, of which one is shared
    assert makes(scheduler).missing(leader, MISS, 4) == 3 + 2


def test_members_that_come_with_another_compute_what_the_budget_allows() -> None:
    """The prompt of "b" is one token, so that all fork at once; one fits into this step."""
    scheduler = small(max_num_seqs=3, max_num_batched_tokens=3)
    scheduler.submit(ask("a", 5), 0.0)
    step(scheduler)
    scheduler.submit(ask("b", 1, n=2), 0.0)
    assert [step(scheduler)["tokens"] for _ in range(2)] == [
        {"a": 2, "0_b": 1},
        {"a": 1, "0_b": 1, "1_b": 1},
    ]


# -- those who return --------------------------------------------------------


def test_one_that_returns_gets_its_first_row_at_once() -> None:
    scheduler = crowded(preemption_mode="swap", swap_space=4)
    while not (plan := scheduler.plan(0.0)).to_dict()["resumed"]:
        commit(scheduler, plan)
    told = plan.to_dict()
    assert (told["tokens"], told["resumed"]) == ({"b": 1}, ["b"])
    assert plan.start.tolist() == [4]
    assert plan.admitted[0].computed == 4


def away(beside: bool = False, **settings: Any) -> Scheduler:
    """With a family of two on the host, and nobody else unless somebody is `beside` it."""
    scheduler = small(preemption_mode="swap", swap_space=8, **settings)
    if beside:
        scheduler.submit(ask("b", 2, max_tokens=9), 0.0)
    scheduler.submit(ask("a", 5, max_tokens=9, n=2), 0.0)
    for _ in range(3):
        step(scheduler)
    preempt(scheduler, "a")
    scheduler.pause()
    step(scheduler)
    scheduler.resume()
    assert state(scheduler, "a")["state"] == "SWAPPED"
    return scheduler


def test_a_family_returns_as_a_whole() -> None:
    plan = step(away())
    assert (plan["resumed"], plan["tokens"]) == (["0_a", "1_a"], {"0_a": 1, "1_a": 1})


def test_a_family_waits_for_a_slot_for_each() -> None:
    scheduler = away(max_num_seqs=4)
    table = scheduler.state.table
    for _ in range(3):
        table.reserve()
    step(scheduler)
    assert gate(scheduler) == ("seqs", "a", 1)


def test_a_family_waits_for_budget_for_each() -> None:
    scheduler = away()
    row = np.array([31], np.int32)
    served = Composition(np.array([0]), row, row, row - row)
    found = admission(scheduler).let_in(served, 0.0, whole).gate
    assert found is not None
    assert (found.reason, found.request_id, found.short) == ("budget", "a", 1)


def test_a_family_waits_for_the_blocks_of_all() -> None:
    """Each has two blocks, of which the first is the same."""
    scheduler = away()
    pool = scheduler.state.cache.pool
    pool.take(pool.free - 2)
    assert scheduler.plan(0.0).empty
    assert gate(scheduler) == ("blocks", "a", 1)


@pytest.mark.parametrize(("others", "returns"), [(False, True), (True, False)])
def test_one_that_returns_leaves_a_watermark_if_somebody_runs(others: bool, returns: bool) -> None:
    """Three blocks are needed, four are to be left, and six are free."""
    scheduler = away(others, watermark=0.25)
    pool = scheduler.state.cache.pool
    pool.take(pool.free - 6)
    assert bool(scheduler.plan(0.0).to_dict()["resumed"]) == returns
    assert gate(scheduler) == (None if returns else ("blocks", "a", 1))


def test_admission_is_asked_again_when_fences_fall() -> None:
    scheduler = steps.make(num_blocks=5, max_model_len=20)
    scheduler.submit(steps.request("a", [1], max_tokens=16), 0.0)
    scheduler.submit(steps.request("f", [2] * 6, max_tokens=4, n=2), 0.0)
    steps.step(scheduler)
    copying = scheduler.plan(0.0)
    assert copying.copies  # blocks of the fork are fenced until it has run
    scheduler.submit(steps.request("c", [3] * 16, max_tokens=1), 0.0)
    assert scheduler.abort("f", 0.0)
    alone = scheduler.plan(0.0)
    assert alone.to_dict()["tokens"] == {"a": 1}
    assert scheduler.gate is not None
    assert scheduler.gate.reason == "blocks"
    steps.commit(scheduler, copying)
    steps.commit(scheduler, alone)
    assert "c" in scheduler.plan(0.0).to_dict()["new"]


def test_nobody_is_admitted_in_a_step_that_preempted() -> None:
    """Edge case 5: Even though the victim left more than was needed."""
    scheduler = small(num_blocks=5, max_num_seqs=3)
    scheduler.submit(ask("a", 4, max_tokens=8), 0.0)
    scheduler.submit(ask("b", 16, max_tokens=4), 0.0)
    step(scheduler)
    scheduler.submit(ask("c", 3), 0.0)
    plan = step(scheduler)
    assert (plan["preempted"], plan["new"]) == (["b"], [])
    assert scheduler.snapshot()["free_blocks"] == 3
    assert step(scheduler)["new"] == []  # "b" is first, and its 5 blocks are not there


@DISCIPLINES
def test_one_on_the_host_keeps_all_who_wait_out(discipline: str) -> None:
    """Edge case 65: Also in steps that mix prompts and decodes, and though a block is free for a
    short one."""
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
def test_a_step_that_preempted_admits_nobody_in_any_discipline(discipline: str) -> None:
    """Edge case 65: Not even in one that mixes prompts and decodes; V0 with chunks did."""
    scheduler = crowded(discipline=discipline, num_blocks=2)
    scheduler.submit(ask("c", 1, max_tokens=1), 0.0)
    plan = step(scheduler)
    assert (plan["preempted"], plan["new"], plan["resumed"]) == (["b"], [], [])


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
