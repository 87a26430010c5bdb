"""Steps as the loop sees them."""

from dataclasses import replace
from typing import Any

import numpy as np

from paceline.core.plan import StepResult
from paceline.engine.loop.figures import TOKENS_PER_STEP, StepCounts
from tests.engine.loop.test_engine import Teller, request
from tests.engine.support import components


def test_tokens_of_each_step_are_counted() -> None:
    teller = Teller(components(max_num_batched_tokens=16))
    teller.engine.submit(request("a", length=20, most=3, ignore_eos=True))
    teller.run()
    counts: dict[str, Any] = teller.engine._counts.to_dict()
    *sizes, total = counts["step_tokens"]
    assert len(sizes) == len(TOKENS_PER_STEP) + 1
    assert total == 20 + 2
    assert sizes[:3] == [2, 1, 1]  # two of one token, one of four, one of sixteen
    assert (counts["drafts"], counts["accepted_at"]) == (0, [])


def test_drafts_are_counted_by_place() -> None:
    made = components(num_speculative_tokens=3)
    made.scheduler.submit(request("a", length=5, most=20, ignore_eos=True), 0.0)
    plan = made.scheduler.plan(0.0)
    made.scheduler.commit(plan, StepResult.of(plan, {"a": [7]}), 0.0)
    plan = made.scheduler.plan(0.0)
    drafts = int(plan.rows.drafts.sum())
    counts = StepCounts()
    for right in (drafts, drafts - 1):
        counts.landed(plan, StepResult.of(plan, {"a": [7] * (right + 1)}))
    told = counts.to_dict()
    assert drafts > 0
    assert told["drafts"] == 2
    assert told["accepted_at"] == [2] * (drafts - 1) + [1]


def test_rows_without_drafts_are_not_counted_among_them() -> None:
    made = components(num_speculative_tokens=3)
    for name, drafts in (("a", None), ("b", 0)):
        one = request(name, length=5, most=20, ignore_eos=True, drafts=drafts)
        made.scheduler.submit(one, 0.0)
    plan = made.scheduler.plan(0.0)
    made.scheduler.commit(plan, StepResult.of(plan, {"a": [7], "b": [7]}), 0.0)
    plan = made.scheduler.plan(0.0)
    assert sorted(plan.rows.drafts.tolist())[0] == 0 < plan.rows.drafts.max()
    counts = StepCounts()
    counts.landed(plan, StepResult.of(plan, {"a": [7], "b": [7]}))
    told = counts.to_dict()
    assert (told["drafts"], told["accepted_at"]) == (1, [])


def test_drafts_that_were_not_computed_do_not_count() -> None:
    made = components(num_speculative_tokens=3)
    made.scheduler.submit(request("a", length=5, most=20, ignore_eos=True), 0.0)
    plan = made.scheduler.plan(0.0)
    made.scheduler.commit(plan, StepResult.of(plan, {"a": [7]}), 0.0)
    plan = made.scheduler.plan(0.0)
    assert plan.rows.drafts.any()
    counts = StepCounts()
    result = StepResult.of(plan, {"a": [7]})
    counts.landed(plan, replace(result, computed_drafts=np.zeros_like(plan.rows.drafts)))
    told = counts.to_dict()
    assert (told["drafts"], told["step_tokens"][-1]) == (0, 1)
