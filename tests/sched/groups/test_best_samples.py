"""Requests that return only the best of their samples."""

from dataclasses import replace

import numpy as np
import pytest

from paceline import Finish, StepError, StepResult
from paceline.testing.reference import best_of, reference
from tests.sched.groups.support import LENGTH, STOP, likely, run, tight
from tests.sched.support import DEPTHS, VOCAB, answer, ask, commit, small, state, step


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
    assert end.unreturned == 2  # of the third


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
    scheduler.commit(plan, likely(plan, {}, {}), 0.0)
    plan = scheduler.plan(0.0)
    ends = scheduler.fail(plan, 0.0).finished
    assert [(end.child, end.finish, end.choices) for end in ends] == [(-1, Finish.ERROR, ())]
    assert ends[0].unreturned == 3


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


def test_a_search_for_the_best_that_failed_has_no_choices() -> None:
    """Though one of its sequences had come to its end."""
    scheduler = small()
    asked = ask("a", 3, max_tokens=9, n=1, best_of=2, stop_token_ids=(5,))
    scheduler.submit(asked, 0.0)
    step(scheduler)
    plan = scheduler.plan(0.0)
    tokens, scores = {"0_a": [5], "1_a": [6]}, {"0_a": [-1.0], "1_a": [-1.0]}
    assert scheduler.commit(plan, StepResult.of(plan, tokens, scores), 0.0).finished == ()
    (end,) = scheduler.fail(scheduler.plan(0.0), 0.0).finished
    assert (end.request_id, end.finish, end.choices) == ("a", Finish.ERROR, ())
