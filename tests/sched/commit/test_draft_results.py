"""What accepted, rejected and missing drafts leave behind."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from paceline import Scheduler, StepResult
from paceline.core.errors import StepError
from paceline.testing.reference import reference
from tests.sched.support import (
    Pipeline,
    ask,
    commit,
    counters,
    drafting,
    findable,
    small,
    state,
    step,
)


def fewer(scheduler: Scheduler, computed: int, *tokens: int) -> dict[str, Any]:
    """One step with three drafts, of which so many were computed."""
    plan = scheduler.plan(0.0)
    result = StepResult.of(plan, {"a": tokens})
    result = replace(result, computed_drafts=np.array([computed], np.int32))
    return scheduler.commit(plan, result, 0.0).to_dict()


def test_drafts_that_were_not_computed_are_taken_back_and_not_counted() -> None:
    scheduler = drafting(3)
    scheduler.submit(ask("a", 5, max_tokens=20), 0.0)
    step(scheduler)
    assert fewer(scheduler, 1, 7, 8)["a"]["tokens"] == [7, 8]
    assert counters(scheduler, "a") == (8, 7, 7)
    assert (scheduler.stats.drafted, scheduler.stats.accepted) == (1, 1)
    fewer(scheduler, 0, 9)
    assert counters(scheduler, "a") == (9, 8, 8)
    assert (scheduler.stats.drafted, scheduler.stats.accepted) == (1, 1)


@pytest.mark.parametrize(("computed", "tokens"), [(4, [1]), (-1, [1]), (1, [1, 2, 3])])
def test_a_result_with_drafts_that_cannot_be_is_refused(computed: int, tokens: list[int]) -> None:
    scheduler = drafting(3)
    scheduler.submit(ask("a", 5, max_tokens=20), 0.0)
    step(scheduler)
    with pytest.raises(StepError, match=r"drafts|it must have"):
        fewer(scheduler, computed, *tokens)


@pytest.mark.parametrize(
    ("sampled", "known", "planned"), [([1, 2, 3, 4], 10, 9), ([1, 2], 8, 7), ([1], 7, 6)]
)
def test_rejected_drafts_leave_the_counters_as_if_never_planned(
    sampled: list[int], known: int, planned: int
) -> None:
    scheduler = drafting(3)
    scheduler.submit(ask("a", 5, max_tokens=20), 0.0)
    step(scheduler)
    plan = scheduler.plan(0.0)
    assert counters(scheduler, "a") == (6, 9, 5)
    assert commit(scheduler, plan, a=sampled)["a"]["tokens"] == sampled
    assert counters(scheduler, "a") == (known, planned, planned)


def test_blocks_held_for_rejected_drafts_are_used_later_and_not_taken_twice() -> None:
    scheduler = drafting(3)
    scheduler.submit(ask("a", 4, max_tokens=20), 0.0)
    step(scheduler)
    grown = [len(step(scheduler, a=[1])["blocks"].get("a", [[]])[0]) for _ in range(6)]
    assert grown == [1, 1, 0, 0, 0, 1]  # positions 4-7, 5-8, 6-9, 7-10, 8-11, 9-12
    assert len(state(scheduler, "a")["blocks"][0]) == 4


def test_two_steps_of_drafts_in_flight_are_accounted_one_after_the_other() -> None:
    scheduler = drafting(2)
    scheduler.submit(ask("a", 5, max_tokens=20), 0.0)
    step(scheduler)
    first, second = scheduler.plan(0.0), scheduler.plan(0.0)
    assert (first.start.tolist(), second.start.tolist()) == ([5], [8])
    assert counters(scheduler, "a") == (6, 11, 5)
    commit(scheduler, first, a=[1])  # two rejected
    assert counters(scheduler, "a") == (7, 9, 6)
    commit(scheduler, second, a=[2, 3])  # one rejected
    assert counters(scheduler, "a") == (9, 8, 8)


def test_a_rejection_lets_a_sequence_go_on_that_had_planned_its_last_position() -> None:
    scheduler = drafting(3)
    scheduler.submit(ask("a", 5, max_tokens=5), 0.0)
    step(scheduler)
    plan = scheduler.plan(0.0)
    assert len(scheduler.plan(0.0).rows) == 0  # all 9 positions are handed out
    commit(scheduler, plan, a=[1])
    plan = scheduler.plan(0.0)
    assert plan.to_dict()["tokens"] == {"a": 3}
    assert commit(scheduler, plan, a=[2, 3, 4])["a"]["finish"] == "length"


def test_rejected_drafts_are_in_no_block_that_can_be_found() -> None:
    scheduler = drafting(3)
    prompt = list(range(50, 54))
    scheduler.submit(ask("a", prompt, max_tokens=20), 0.0)
    step(scheduler, a=[1])
    step(scheduler, a=[2])
    step(scheduler, a=[3])
    scheduler.abort("a", 0.0)
    assert findable(scheduler, [*prompt, 1, 2, 3, 9]) == 4
    assert findable(scheduler, prompt) == 4


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("rule", ["fixed", "adaptive"])
def test_output_is_the_same_with_drafts_as_without(depth: int, rule: str) -> None:
    scheduler = small(num_speculative_tokens=3, speculation=rule, num_blocks=8, max_num_seqs=3)
    asked = [ask(name, 5 + number, max_tokens=13) for number, name in enumerate("abc")]
    for one in asked:
        scheduler.submit(one, 0.0)
    pipeline = Pipeline(scheduler, depth).run()
    assert pipeline.got == {one.id: reference(one, 50, 64)[0] for one in asked}
    assert pipeline.ends == {one.id: ["length"] for one in asked}
