"""A steady decode hands out the same rows again, until anything happens."""

from collections.abc import Callable
from typing import ClassVar

import numpy as np
import pytest

from paceline import Plan, Scheduler, StepError, StepResult
from paceline.sched.commit.accounting import Accounting
from paceline.sched.commit.result_rows import ResultHook, ResultRows
from paceline.sched.steady import Steady
from tests.sched import constant_steps as steps
from tests.sched.support import (
    answer,
    ask,
    commit,
    counters,
    finish_all,
    gate,
    sampling,
    sequence,
    small,
    state,
    step,
)


def decoding(
    names: str = "ab", prompt: int = 3, max_tokens: int = 30, **settings: int
) -> Scheduler:
    """Residents that have all computed their prompt and sampled twice."""
    scheduler = small(**settings)
    for name in names:
        scheduler.submit(ask(name, prompt, max_tokens), 0.0)
    step(scheduler)
    step(scheduler)
    return scheduler


def steady_plan(scheduler: Scheduler) -> Plan:
    """The next plan, after making sure that the two before it share their rows."""
    plans = [scheduler.plan(0.0)]
    commit(scheduler, plans[0])
    plans.append(scheduler.plan(0.0))
    commit(scheduler, plans[1])
    assert plans[0].rows is plans[1].rows
    return plans[1]


def test_consecutive_plans_share_their_rows() -> None:
    scheduler = decoding()
    first = scheduler.plan(0.0)
    commit(scheduler, first)
    second = scheduler.plan(0.0)
    assert second.rows is first.rows
    assert (first.start.tolist(), second.start.tolist()) == ([4, 4], [5, 5])
    assert second.step == first.step + 1
    assert second.total == 2


def test_they_share_them_at_any_depth() -> None:
    scheduler = decoding()
    plans = [scheduler.plan(0.0) for _ in range(4)]
    assert all(plan.rows is plans[0].rows for plan in plans)
    for plan in plans:
        commit(scheduler, plan)
    assert counters(scheduler, "a") == (9, 8, 8)


def test_the_step_of_the_prompt_is_not_steady() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 3), 0.0)
    first = scheduler.plan(0.0)
    commit(scheduler, first)
    assert scheduler.plan(0.0).rows is not first.rows


def test_only_the_blocks_that_are_needed_are_told() -> None:
    scheduler = decoding("ab", prompt=3)  # block edges at positions 4, 8, 12, ...
    plans = [scheduler.plan(0.0) for _ in range(9)]
    assert [len(plan.grown.block) for plan in plans] == [2, 0, 0, 0, 2, 0, 0, 0, 2]
    assert plans[4].grown.slot.tolist() == [0, 1]
    assert plans[4].grown.index.tolist() == [2, 2]
    assert plans[4].to_dict()["blocks"] == {
        name: [[state(scheduler, name)["blocks"][0][2]]] for name in "ab"
    }


def test_rows_reach_their_block_edges_at_different_times() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 3, max_tokens=30), 0.0)
    scheduler.submit(ask("b", 5, max_tokens=30), 0.0)
    step(scheduler)
    plans = [scheduler.plan(0.0) for _ in range(8)]
    grown = [plan.to_dict()["blocks"].keys() for plan in plans]
    assert [sorted(names) for names in grown] == [[], ["a"], [], ["b"], [], ["a"], [], ["b"]]


# -- what ends it ------------------------------------------------------------


@pytest.mark.parametrize(
    "event",
    [
        lambda scheduler: scheduler.submit(ask("c", 3), 0.0),
        lambda scheduler: scheduler.abort("a", 0.0),
        lambda scheduler: scheduler.reset_prefix_cache(reset_running_requests=True),
        lambda scheduler: scheduler.retry(scheduler.plan(0.0), 0.0),
        lambda scheduler: scheduler.fail(scheduler.plan(0.0), 0.0),
        lambda scheduler: commit(scheduler, scheduler.plan(0.0), b=[7]),
    ],
    ids=["arrival", "abort", "reset", "retry", "failure", "stop"],
)
def test_any_event_ends_it(event: Callable[[Scheduler], object]) -> None:
    scheduler = small()
    for name in "ab":
        scheduler.submit(ask(name, 3, max_tokens=30, stop_token_ids=(7,)), 0.0)
    step(scheduler)
    step(scheduler)
    before = steady_plan(scheduler)
    event(scheduler)
    assert scheduler.plan(0.0).rows is not before.rows
    scheduler.check()


def test_a_wakened_request_ends_it() -> None:
    scheduler = decoding()
    scheduler.submit(ask("c", 3), 0.0, parked="grammar")
    before = steady_plan(scheduler)
    scheduler.wake("c", 0.0)
    after = scheduler.plan(0.0)
    assert after.rows is not before.rows
    assert after.to_dict()["new"] == ["c"]


def test_a_parked_arrival_does_not() -> None:
    scheduler = decoding()
    before = steady_plan(scheduler)
    scheduler.submit(ask("c", 3), 0.0, parked="grammar")
    assert scheduler.plan(0.0).rows is before.rows


def test_the_end_of_a_row_ends_it() -> None:
    scheduler = decoding("ab", max_tokens=4)
    before = steady_plan(scheduler)
    assert scheduler.unfinished == 0
    after = scheduler.plan(0.0)
    assert after.rows is not before.rows
    assert after.finished == ("a", "b")


def test_one_row_at_its_last_position_leaves_the_others_to_go_on() -> None:
    """At depth 3 nobody plans past its limit, and nobody waits for another's result."""
    scheduler = small()
    scheduler.submit(ask("a", 3, max_tokens=3), 0.0)
    scheduler.submit(ask("b", 3, max_tokens=9), 0.0)
    plans = [scheduler.plan(0.0) for _ in range(5)]
    assert [plan.to_dict()["tokens"] for plan in plans] == [
        {"a": 3, "b": 3},
        {"a": 1, "b": 1},
        {"a": 1, "b": 1},
        {"b": 1},
        {"b": 1},
    ]
    assert plans[1].rows is plans[2].rows
    assert plans[2].rows is not plans[3].rows
    for plan in plans:
        commit(scheduler, plan)
    assert finish_all(scheduler)["b"] == [9] * 4


def test_a_shortage_of_blocks_ends_it_with_a_preemption() -> None:
    scheduler = decoding("ab", prompt=3, max_tokens=8, num_blocks=4)
    before = steady_plan(scheduler)
    commit(scheduler, scheduler.plan(0.0))
    commit(scheduler, scheduler.plan(0.0))  # both stand at the edge of their second block
    after = scheduler.plan(0.0)
    assert after.rows is not before.rows
    assert (after.preempted, after.to_dict()["tokens"]) == (("b",), {"a": 1})


def test_a_request_that_cannot_get_in_does_not_end_it() -> None:
    scheduler = decoding("ab", max_num_seqs=2)
    scheduler.submit(ask("c", 3), 0.0)
    step(scheduler)  # looks at "c" once
    before = steady_plan(scheduler)
    scheduler.submit(ask("d", 3), 0.0)
    assert scheduler.plan(0.0).rows is before.rows


def test_a_better_request_at_the_head_is_looked_at() -> None:
    scheduler = small(max_num_seqs=2, policy="priority")
    for name in "ab":
        scheduler.submit(ask(name, 3, max_tokens=30), 0.0)
    scheduler.submit(ask("c", 3, priority=5), 0.0)
    for _ in range(3):
        step(scheduler)
    before = steady_plan(scheduler)
    scheduler.submit(ask("d", 3, priority=1), 0.0)
    assert scheduler.plan(0.0).rows is not before.rows
    spell = scheduler.state.journal.spells[-1]
    assert spell.gate.request_id == "d"


def test_a_pause_and_its_end_are_noticed() -> None:
    scheduler = decoding()
    scheduler.pause()
    scheduler.submit(ask("c", 3), 0.0)
    step(scheduler)
    before = steady_plan(scheduler)  # while admission is paused
    scheduler.resume()
    after = scheduler.plan(0.0)
    assert after.rows is not before.rows
    assert after.to_dict()["new"] == ["c"]


def test_a_pause_of_everything_interrupts_it_and_no_more() -> None:
    scheduler = decoding()
    before = steady_plan(scheduler)
    scheduler.pause("all")
    assert len(scheduler.plan(0.0).rows) == 0
    scheduler.resume()
    after = scheduler.plan(0.0)
    assert after.to_dict()["tokens"] == before.to_dict()["tokens"]
    assert after.start.tolist() == (before.start + 1).tolist()
    assert commit(scheduler, after)["a"]["tokens"] == [9]
    steady_plan(scheduler)


def test_drafts_are_never_steady() -> None:
    scheduler = small(num_speculative_tokens=1)
    scheduler.submit(ask("a", 3, max_tokens=30), 0.0)
    step(scheduler)
    first = scheduler.plan(0.0)
    commit(scheduler, first)
    assert scheduler.plan(0.0).rows is not first.rows


def test_lookahead_is_never_steady() -> None:
    scheduler = decoding(lookahead_slots=2)
    first = scheduler.plan(0.0)
    commit(scheduler, first)
    assert scheduler.plan(0.0).rows is not first.rows


def test_nobody_is_not_steady() -> None:
    scheduler = small()
    at, plan = scheduler.state, scheduler.plan(0.0)
    assert not Steady.suits(plan.rows, plan.start, at.table)


def test_the_last_one_to_drop_out_of_drafting_makes_it_steady() -> None:
    scheduler = small(num_speculative_tokens=2, speculation="fixed")
    scheduler.submit(ask("a", 3, max_tokens=30, drafts=0), 0.0)
    scheduler.submit(ask("b", 3, max_tokens=2), 0.0)
    step(scheduler)
    step(scheduler)
    step(scheduler)
    assert scheduler.snapshot()["running"] == ["a"]
    steady_plan(scheduler)


def test_any_feature_that_needs_the_host_for_a_row_interrupts_it() -> None:
    scheduler = decoding()
    table, slot = scheduler.state.table, scheduler.state.live["b"].slot
    before = steady_plan(scheduler)
    table.need_host(slot, "toy")
    plans = [scheduler.plan(0.0), scheduler.plan(0.0)]
    assert len({id(plan.rows) for plan in (before, *plans)}) == 3
    for plan in plans:
        commit(scheduler, plan)
    table.need_host(slot, "another toy")
    table.release_host(slot, "toy")
    between = scheduler.plan(0.0)
    assert between.rows is not plans[1].rows
    commit(scheduler, between)
    table.release_host(slot, "another toy")
    steady_plan(scheduler)


class Looks(ResultHook):
    """Counts the results that are looked at row by row."""

    results: ClassVar[list[ResultRows]] = []

    def arrived(self, rows: ResultRows) -> None:
        self.results.append(rows)


def test_a_result_is_looked_at_row_by_row_if_a_feature_has_come_to_need_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Accounting, "hooks", (*Accounting.hooks, Looks))
    scheduler = decoding()
    steady_plan(scheduler)
    Looks.results.clear()
    commit(scheduler, scheduler.plan(0.0))
    plan = scheduler.plan(0.0)
    assert len(Looks.results) == 0
    scheduler.state.table.need_host(sequence(scheduler, "a").slot, "toy")
    assert commit(scheduler, plan, a=[5], b=[6])["b"]["tokens"] == [6]
    assert len(Looks.results) == 1


# -- results -----------------------------------------------------------------


def test_a_steady_result_may_be_wider_than_needed() -> None:
    scheduler = decoding()
    steady_plan(scheduler)
    plan = scheduler.plan(0.0)
    wide = StepResult(np.array([[5, -1], [6, -1]], np.int32), np.ones(2, np.int32))
    told = scheduler.commit(plan, wide, 0.0).to_dict()
    assert told == {"a": {"tokens": [5], "finish": None}, "b": {"tokens": [6], "finish": None}}


def arrays(ids: object, count: object) -> StepResult:
    return StepResult(np.array(ids, np.int32), np.array(count, np.int32))


@pytest.mark.parametrize(
    "result",
    [
        arrays([[5]], [1]),
        arrays([[5], [6], [7]], [1, 1, 1]),
        arrays([[5], [6]], [1, 0]),
        arrays([[5, 5], [6, 6]], [1, 2]),
        arrays([[], []], [1, 1]),
        arrays([[5], [6]], [1]),
        arrays([[5], [6]], [1, 1, 1]),
        arrays([[5], [6]], [[1], [1]]),
        arrays([[5], [6]], 1),
        arrays([5, 6], [1, 1]),
        arrays([[[5]], [[6]]], [1, 1]),
    ],
    ids=[
        "too few rows",
        "too many rows",
        "a token missing",
        "a token too many",
        "no column",
        "too few counts",
        "too many counts",
        "counts in two dimensions",
        "a count for all",
        "ids in one dimension",
        "ids in three dimensions",
    ],
)
def test_a_malformed_steady_result_is_refused_and_changes_nothing(result: StepResult) -> None:
    scheduler = decoding()
    steady_plan(scheduler)
    plan = scheduler.plan(0.0)
    before = scheduler.snapshot(), scheduler.stats.to_dict()
    with pytest.raises(StepError):
        scheduler.commit(plan, result, 0.0)
    assert (scheduler.snapshot(), scheduler.stats.to_dict()) == before
    scheduler.check()
    assert commit(scheduler, plan)["b"] == {"tokens": [9], "finish": None}


def test_late_steady_results_of_those_who_stayed_still_count() -> None:
    scheduler = decoding("abc")
    plans = [scheduler.plan(0.0) for _ in range(3)]
    assert plans[2].rows is plans[0].rows
    commit(scheduler, plans[0])
    scheduler.abort("b", 0.0)
    told = [commit(scheduler, plan) for plan in plans[1:]]
    assert told == [{name: {"tokens": [9], "finish": None} for name in "ac"}] * 2
    assert scheduler.stats.stale_rows == 2
    assert counters(scheduler, "a") == (8, 7, 7)


def test_a_long_decode_counts_as_many_positions_and_tokens_as_a_short_one() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 3, max_tokens=50), 0.0)
    assert len(finish_all(scheduler)["a"]) == 50
    assert (scheduler.stats.planned, scheduler.stats.sampled) == (3 + 49, 50)


# -- families ----------------------------------------------------------------


def test_children_that_are_told_of_as_they_go_are_steady() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 3, max_tokens=15, n=3), 0.0)
    for _ in range(3):
        step(scheduler)
    plan = steady_plan(scheduler)
    assert plan.rows.labels == ["0_a", "1_a", "2_a"]


@pytest.mark.parametrize("asked", [{"best_of": 2}, {"beam_width": 2}])
def test_those_of_whom_more_than_a_token_is_told_are_not(asked: dict[str, int]) -> None:
    scheduler = small()
    scheduler.submit(ask("a", 3, max_tokens=30, **asked), 0.0)
    scheduler.submit(ask("b", 3, max_tokens=30), 0.0)
    plans: list[Plan] = []
    for _ in range(5):
        plan = scheduler.plan(0.0)
        every = sampling(plan)
        told = {label: [9] for label in every}
        likely = {label: [(token, -float(token)) for token in range(1, 5)] for label in every}
        scores = {label: [-1.0] for label in every}
        scheduler.commit(plan, StepResult.of(plan, told, scores, likely), 0.0)
        scheduler.check()
        plans.append(plan)
    assert len({id(plan.rows) for plan in plans}) == 5


def test_beside_a_family_that_has_yet_to_fork_nobody_is_steady() -> None:
    """Its leader stands still until the others have come."""
    scheduler = decoding("a")
    scheduler.submit(ask("b", 5, max_tokens=2, n=2), 0.0)
    plans = [scheduler.plan(0.0) for _ in range(2)]
    assert [plan.to_dict()["tokens"] for plan in plans] == [
        {"a": 1, "0_b": 4},
        {"a": 1, "0_b": 1, "1_b": 1},
    ]


def one_waits() -> Scheduler:
    """A steady decode in the only slot, and somebody who waits for it."""
    scheduler = small(max_num_seqs=1)
    scheduler.submit(ask("a", 3, max_tokens=20), 0.0)
    scheduler.submit(ask("b", 3), 0.0)
    for _ in range(3):
        step(scheduler)
    return scheduler


def test_a_pause_is_what_keeps_out_who_waited_for_a_slot() -> None:
    scheduler = one_waits()
    assert gate(scheduler) == ("seqs", "b", 1)
    scheduler.pause()
    step(scheduler)
    assert gate(scheduler) == ("paused", "b", 0)


def test_nobody_waits_behind_one_that_was_parked_before_it_came() -> None:
    scheduler = one_waits()
    scheduler.park("b", "grammar", now=1.0)
    step(scheduler, now=2.0)
    scheduler.submit(ask("c", 3), now=3.0)
    step(scheduler, now=5.0)
    step(scheduler, now=6.0)
    assert "'b'" not in scheduler.explain("c")


def test_ends_are_told_in_the_order_in_which_they_came() -> None:
    scheduler = small(max_num_seqs=1, policy="deadline", refuse_late=True)
    scheduler.submit(ask("a", 3, max_tokens=1, deadline=0.5), 0.0)
    scheduler.submit(ask("late", 3, deadline=1.0), 0.0)
    plan = scheduler.plan(0.0)
    assert scheduler.plan(2.0).empty
    outputs = scheduler.commit(plan, answer(plan), 3.0)
    assert [end.request_id for end in outputs.finished] == ["late", "a"]


def test_a_result_in_numbers_of_another_kind_is_counted_like_others() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 4, 8), 0.0)
    for kind in (np.int32, np.int32, np.int32, np.int64, *[np.int32] * 4):
        plan = scheduler.plan(0.0)
        ids, count = np.full((1, 1), 9, np.int32), np.ones(1, kind)
        scheduler.commit(plan, StepResult(ids, count), 0.0)
    assert scheduler.idle


def test_a_steady_decode_takes_the_very_last_block() -> None:
    scheduler = steps.make(num_blocks=3, max_model_len=12)
    scheduler.submit(steps.request("a", [1, 2, 3], max_tokens=9), 0.0)
    first, *plans = [steps.step(scheduler) for _ in range(8)]
    assert first.rows is not plans[0].rows
    assert all(plan.rows is plans[0].rows for plan in plans)
