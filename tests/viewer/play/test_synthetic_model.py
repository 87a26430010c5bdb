"""The toy model: what it says does not depend on how it was scheduled."""

from typing import Any

import numpy as np
import pytest

from paceline.core.plan import NO_ROWS, Plan, StepResult
from paceline.core.request import Request
from paceline.sched.scheduler import Scheduler
from paceline.viewer.play.synthetic_model import (
    BLOCK_S,
    STEP_S,
    STOP_TOKEN,
    TOKEN_S,
    ToyModel,
    step_s,
)


def planned(request: Request, **settings: Any) -> tuple[Scheduler, Plan]:
    scheduler = Scheduler.create(max_num_seqs=4, max_model_len=64, num_blocks=64, **settings)
    scheduler.submit(request, now=0.0)
    return scheduler, scheduler.plan(now=0.0)


def request(**more: Any) -> Request:
    return Request("a", np.arange(1, 6), max_tokens=6, **more)


def run(asked: Request, stop_at: dict[str, int] | None = None) -> list[tuple[Plan, StepResult]]:
    """Every step of a request that runs alone."""
    scheduler, plan = planned(asked)
    model = ToyModel(0, 0.7, stop_at or {})
    steps: list[tuple[Plan, StepResult]] = []
    while not scheduler.idle:
        result = model.run(plan)
        steps.append((plan, result))
        scheduler.commit(plan, result, now=0.0)
        plan = scheduler.plan(now=0.0)
    return steps


def test_a_plain_request_gets_neither_scores_nor_candidates() -> None:
    for _, result in run(request()):
        assert result.logprob is None
        assert result.candidates is None


def test_samples_of_one_request_differ() -> None:
    outputs: dict[str, list[int]] = {"0_a": [], "1_a": [], "2_a": []}
    for plan, result in run(request(n=3)):
        for label, ids, count in zip(plan.rows.labels, result.ids, result.count, strict=True):
            outputs[label] += ids[:count].tolist()
    assert [len(tokens) for tokens in outputs.values()] == [6, 6, 6]
    assert len({tuple(tokens) for tokens in outputs.values()}) == 3


def test_those_who_want_their_best_get_scores() -> None:
    scored = [result for _, result in run(request(best_of=2)) if result.count.any()]
    assert scored
    for result in scored:
        assert result.logprob is not None
        assert (result.logprob[result.count > 0, 0] <= 0).all()
        assert result.candidates is None


def test_beams_get_as_many_candidates_as_they_ask_for_best_first() -> None:
    asked = request(beam_width=3)
    answered = [result for _, result in run(asked) if result.count.any()]
    assert len(answered) == 6
    for result in answered:
        found = result.candidates
        assert found is not None
        assert found.ids.shape == (3, asked.candidates)
        for ids, values in zip(found.ids.tolist(), found.logprob.tolist(), strict=True):
            assert len(set(ids)) == len(ids)
            assert values == sorted(values, reverse=True)
            assert np.exp(values).sum() == pytest.approx(1.0, rel=1e-5)


def test_what_follows_a_beam_depends_on_its_tokens_alone() -> None:
    first = next(result for _, result in run(request(beam_width=3)) if result.count.any())
    assert first.candidates is not None
    alike = first.candidates.ids.tolist()
    assert alike[0] == alike[1] == alike[2]
    later = run(request(beam_width=3))[-1][1].candidates
    assert later is not None
    assert len({tuple(ids) for ids in later.ids.tolist()}) == 3


@pytest.mark.parametrize("family", [{"beam_width": 2}, {"n": 2}])
def test_the_stop_token_comes_when_it_may(family: dict[str, int]) -> None:
    steps = run(request(eos_token_ids=(STOP_TOKEN,), **family), {"0_a": 4, "1_a": 4})
    seen = []
    for _, result in steps:
        said = result.ids if result.candidates is None else result.candidates.ids
        if result.count.any():
            seen.append(bool((said == STOP_TOKEN).any()))
    assert seen[:4] == [False, False, False, True]


def test_what_a_step_costs() -> None:
    empty = Plan(1, NO_ROWS, NO_ROWS.count)
    assert step_s(empty) == STEP_S
    moving = Plan(1, NO_ROWS, NO_ROWS.count, swap_out=((0, 0), (1, 1)), swap_in=((2, 2),))
    assert step_s(moving) == pytest.approx(STEP_S + 3 * BLOCK_S)
    _, plan = planned(request())
    assert step_s(plan) == pytest.approx(STEP_S + 5 * TOKEN_S)
