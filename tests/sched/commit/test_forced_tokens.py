"""Tokens that a constraint forces are appended at once, and computed together."""

from dataclasses import replace

import pytest

from paceline import Request, Scheduler, StepResult
from paceline.core.errors import StepError
from paceline.core.plan import Forced, Plan


def scheduler(**fields: int) -> Scheduler:
    made = Scheduler.create(
        max_num_seqs=4, max_num_batched_tokens=16, max_model_len=64, num_blocks=32, block_size=4
    )
    made.submit(Request("a", [7, 8, 9], **{"max_tokens": 20, **fields}), now=0.0)  # pyright: ignore[reportArgumentType]
    return made


def forced(plan: Plan, token: int, *tokens: int) -> StepResult:
    return replace(StepResult.of(plan, {"a": [token]}), forced=(Forced(0, tokens),))


def test_the_next_step_computes_them_all() -> None:
    at = scheduler()
    plan = at.plan(now=0.0)
    assert at.view.ahead(plan.rows).tolist() == [0]
    outputs = at.commit(plan, forced(plan, 1, 2, 3, 4), now=0.1)
    assert outputs.to_dict() == {"a": {"tokens": [1, 2, 3, 4], "finish": None}}
    plan = at.plan(now=0.2)
    assert plan.to_dict()["tokens"] == {"a": 4}
    assert plan.chosen == ((0, (1, 2, 3, 4)),)
    assert at.commit(plan, StepResult.of(plan, {"a": [5]}), now=0.3).ids[:, 0].tolist() == [5]
    at.check()


def test_the_sample_of_a_step_in_flight_is_dropped() -> None:
    at = scheduler()
    first, second = at.plan(now=0.0), at.plan(now=0.0)
    assert at.view.ahead(first.rows).tolist() == [1]
    at.commit(first, forced(first, 1, 2, 3), now=0.1)
    third = at.plan(now=0.2)
    assert third.chosen == ((0, (2, 3)),)
    assert (third.start.tolist(), third.rows.count.tolist()) == ([4], [2])
    assert at.view.ahead(second.rows).tolist() == [-1]
    assert at.commit(second, StepResult.of(second, {"a": [6]}), now=0.3).to_dict() == {}
    assert at.view.ahead(third.rows).tolist() == [0]
    outputs = at.commit(third, StepResult.of(third, {"a": [4]}), now=0.4)
    assert outputs.to_dict()["a"]["tokens"] == [4]
    assert at.snapshot()["requests"]["a"]["known"] == 7
    at.check()


@pytest.mark.parametrize(
    ("fields", "tokens", "finish"),
    [
        ({"max_tokens": 3}, [1, 2, 3], "length"),
        ({"stop_token_ids": (2,)}, [1, 2], "stop"),
        ({"eos_token_ids": (4,)}, [1, 2, 3, 4], "stop"),
    ],
)
def test_they_may_end_the_request(fields: dict[str, int], tokens: list[int], finish: str) -> None:
    at = scheduler(**fields)
    first, second = at.plan(now=0.0), at.plan(now=0.0)
    outputs = at.commit(first, forced(first, 1, 2, 3, 4), now=0.1)
    assert outputs.to_dict()["a"] == {"tokens": tokens, "finish": finish}
    assert at.plan(now=0.2).chosen == ()
    assert at.commit(second, StepResult.of(second, {"a": [6]}), now=0.3).to_dict() == {}
    assert at.idle


def test_a_step_with_drafts_in_flight_is_seen() -> None:
    at = Scheduler.create(
        max_num_seqs=4,
        max_num_batched_tokens=16,
        max_model_len=64,
        num_blocks=32,
        block_size=4,
        num_speculative_tokens=2,
        speculation="fixed",
    )
    at.submit(Request("a", [7, 8, 9], max_tokens=20), now=0.0)  # pyright: ignore[reportArgumentType]
    first, second = at.plan(now=0.0), at.plan(now=0.0)
    assert second.rows.drafts.tolist() == [2]
    assert at.view.ahead(first.rows).tolist() == [3]
    at.commit(first, StepResult.of(first, {"a": [1]}), now=0.1)
    assert at.view.ahead(second.rows).tolist() == [0]
    at.commit(
        second, replace(StepResult.of(second, {"a": [2, 3]}), forced=(Forced(0, (4, 5)),)), 0.2
    )
    plan = at.plan(now=0.3)
    assert (plan.rows.count.tolist(), plan.rows.drafts.tolist()) == ([3], [0])
    assert plan.chosen == ((0, (3, 4, 5)),)


@pytest.mark.parametrize("wrong", [Forced(1, (2,)), Forced(0, ())])
def test_a_row_that_yields_nothing_has_none(wrong: Forced) -> None:
    at = scheduler()
    plan = at.plan(now=0.0)
    with pytest.raises(StepError, match="forced"):
        at.commit(plan, replace(StepResult.of(plan, {"a": [1]}), forced=(wrong,)), now=0.1)
