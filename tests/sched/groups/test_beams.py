"""Beam search: by hand on small models, and against the reference on random ones."""

from itertools import product
from random import Random
from typing import Any

import pytest

from paceline import Request, StepResult
from paceline.core.request import Finish
from paceline.sched.groups.beams import BeamSearch, Candidate, Continuation, assign
from paceline.testing.reference import beam_search, digest_of, likeliest
from tests.sched import constant_steps as steps
from tests.sched.support import Pipeline, ask, small

END = 0
Model = dict[tuple[int, ...], list[tuple[int, float]]]  # continuations by output


def beams(width: int = 2, **fields: Any) -> Request:
    return ask("a", 3, **{"max_tokens": 4, "eos_token_ids": (END,), "beam_width": width} | fields)


def advance(search: BeamSearch, outputs: list[tuple[int, ...]], model: Model) -> list[Continuation]:
    told = [[Candidate(*one) for one in model[tokens]] for tokens in outputs]
    return search.advance(outputs, told)


def run(request: Request, most: int, model: Model) -> BeamSearch:
    """Until the search is over; each beam takes the continuation of its rank."""
    search = BeamSearch(request, most)
    outputs: list[tuple[int, ...]] = [()] * request.beam_width
    while going := advance(search, outputs, model):
        assigned = dict(enumerate(going))
        search.follow(assigned)
        outputs = [(*outputs[step.parent], step.token) for step in assigned.values()]
    return search


def rounded(search: BeamSearch) -> list[tuple[tuple[int, ...], float]]:
    return [(end.tokens, round(end.score, 6)) for end in search.finished]


# -- one step ----------------------------------------------------------------


def test_at_first_all_beams_come_from_one() -> None:
    """All know the same, and each candidate would be there as often as there are beams."""
    search = BeamSearch(beams(3), max_tokens=4)
    told: Model = {(): [(5, -0.5), (6, -1.0), (7, -2.0), (8, -3.0)]}
    going = advance(search, [()] * 3, told)
    assert going == [Continuation(0, 5, -0.5), Continuation(0, 6, -1.0), Continuation(0, 7, -2.0)]


def test_the_best_continuations_of_all_beams_go_on_best_first() -> None:
    search = BeamSearch(beams(), max_tokens=4)
    search.follow({0: Continuation(0, 5, -1.0), 1: Continuation(0, 6, -1.5)})
    told: Model = {(5,): [(7, -1.0), (8, -3.0)], (6,): [(7, -0.1), (8, -0.2)]}
    assert advance(search, [(5,), (6,)], told) == [
        Continuation(1, 7, -1.6),
        Continuation(1, 8, -1.7),
    ]


def test_of_equal_scores_the_better_beam_goes_first_and_then_the_earlier_candidate() -> None:
    search = BeamSearch(beams(), max_tokens=9)
    search.follow({1: Continuation(0, 5, -1.0), 0: Continuation(0, 6, -1.0)})
    told: Model = {(6,): [(1, -1.0), (2, -1.0)], (5,): [(3, -1.0), (4, -1.0)]}
    going = advance(search, [(6,), (5,)], told)
    assert [(one.parent, one.token) for one in going] == [(1, 3), (1, 4)]


def test_an_end_counts_only_among_the_first_of_all() -> None:
    """The third best stops, and two beams are wanted: neither an end nor a beam."""
    search = BeamSearch(beams(), max_tokens=4)
    going = advance(search, [()] * 2, {(): [(5, -0.5), (6, -1.0), (END, -1.5), (7, -2.0)]})
    assert [one.token for one in going] == [5, 6]
    assert search.finished == []


def test_whatever_ends_as_many_beams_go_on() -> None:
    search = BeamSearch(beams(), max_tokens=4)
    going = advance(search, [()] * 2, {(): [(END, -0.5), (5, -1.0), (6, -1.5), (7, -2.0)]})
    assert [one.token for one in going] == [5, 6]
    assert [(end.tokens, end.finish, end.stop_token) for end in search.finished] == [
        ((END,), Finish.STOP, END)
    ]


def test_several_stop_tokens_of_one_beam_are_several_ends() -> None:
    request = beams(2, eos_token_ids=(END, 1), stop_token_ids=(2,), early_stopping="never")
    search = BeamSearch(request, max_tokens=4)
    told: Model = {(): [(1, -0.1), (2, -0.2), (END, -0.3), (5, -0.4), (6, -0.5), (7, -0.6)]}
    going = advance(search, [()] * 2, told)
    assert [one.token for one in going] == [5, 6]  # not over: better may come
    assert [(end.tokens, end.stop_token) for end in search.finished] == [((1,), 1), ((2,), 2)]


def test_below_min_tokens_a_stop_token_is_a_token_like_others() -> None:
    search = BeamSearch(beams(min_tokens=2), max_tokens=4)
    told: Model = {(): [(END, -0.5), (5, -1.0), (6, -2.0), (7, -3.0)]}
    assert [step.token for step in advance(search, [()] * 2, told)] == [END, 5]
    assert search.finished == []


def test_at_the_last_token_everything_ends_by_length() -> None:
    search = run(beams(max_tokens=1), 1, {(): [(5, -0.5), (END, -1.0), (6, -2.0)]})
    assert [(end.tokens, end.finish, end.stop_token) for end in search.finished] == [
        ((5,), Finish.LENGTH, None),
        ((END,), Finish.STOP, END),
    ]


def test_a_worse_end_drops_out_when_a_better_one_comes() -> None:
    model: Model = {
        (): [(END, -0.12), (5, -0.2), (6, -0.3), (7, -0.4)],
        (5,): [(END, -0.1), (7, -0.2)],
        (6,): [(END, -0.1), (7, -9.0)],
    }
    search = run(beams(length_penalty=2.0, early_stopping="never", max_tokens=2), 2, model)
    assert rounded(search) == [((5, END), -0.075), ((5, 7), -0.1)]


def test_only_as_many_are_returned_as_were_asked_for() -> None:
    told: Model = {(): [(5, -0.5), (6, -1.0), (7, -2.0)]}
    for number in (1, 2):
        choices = run(beams(n=number, max_tokens=1), 1, told).choices()
        assert [choice.tokens for choice in choices] == [(5,), (6,)][:number]


# -- when it is over ---------------------------------------------------------


def example(last: float) -> Model:
    """After three tokens two have ended, at -0.7 and -0.75, and the best beam is at -2.0 - last.

    The fourth token is the last one.
    """
    return {
        (): [(1, -1.0), (2, -2.0), (END, -3.0), (9, -9.0)],
        (1,): [(END, -0.5), (3, -1.0), (9, -9.0)],
        (2,): [(END, -0.2), (4, -3.0), (9, -9.0)],
        (1, 3): [(END, -0.1), (5, -last), (9, -9.0)],
        (2, 4): [(END, -0.1), (6, -3.0), (9, -9.0)],
        (1, 3, 5): [(END, -0.05), (9, -9.0)],
        (2, 4, 6): [(END, -0.05), (9, -9.0)],
    }


SOONER = [(1, 3, END), (1, END)]
LATER = [(1, 3, 5, END), (1, 3, END)]


@pytest.mark.parametrize(
    ("early_stopping", "last", "found"),
    [
        (True, 0.2, SOONER),  # as soon as there are two ends
        (False, 0.2, LATER),  # -2.2 / 3 is better than -0.75
        ("never", 0.2, LATER),
        (True, 0.3, SOONER),
        (False, 0.3, SOONER),  # -2.3 / 3 is not
        ("never", 0.3, LATER),  # but -2.3 / 4 would be
        ("never", 1.1, SOONER),  # and -3.1 / 4 would not
    ],
)
def test_the_search_is_over_when_nothing_is_to_be_gained(
    early_stopping: Any, last: float, found: list[tuple[int, ...]]
) -> None:
    search = run(beams(n=2, early_stopping=early_stopping), 4, example(last))
    assert [choice.tokens for choice in search.choices()] == found


def test_with_a_penalty_that_favours_short_ones_never_looks_at_the_next_token_only() -> None:
    """What could be attained in the longest is less than what is there."""
    for early_stopping in (False, "never"):
        request = beams(n=2, early_stopping=early_stopping, length_penalty=-1.0)
        search = run(request, 4, example(0.2))
        assert [choice.tokens for choice in search.choices()] == [(1, END), (1, 3, END)]


@pytest.mark.parametrize(
    ("penalty", "scores"),
    [(0.0, [-1.5, -2.1]), (1.0, [-0.7, -0.75]), (2.0, [-2.1 / 9, -1.5 / 4]), (-1.0, [-3.0, -6.3])],
)
def test_an_end_is_weighed_by_its_length(penalty: float, scores: list[float]) -> None:
    request = beams(n=2, early_stopping=True, length_penalty=penalty)
    found = [choice.score for choice in run(request, 4, example(0.2)).choices()]
    assert found == pytest.approx(scores)


def test_without_an_end_token_the_search_runs_to_its_length() -> None:
    model: Model = {
        tokens: [(1, -0.5), (2, -1.0)]
        for length in range(4)
        for tokens in product((1, 2), repeat=length)
    }
    request = beams(eos_token_ids=(), early_stopping=True)
    search = run(request, 4, model)
    assert rounded(search) == [((1, 1, 1, 1), -0.5), ((1, 1, 1, 2), -0.625)]


def test_ignored_end_tokens_end_nothing() -> None:
    told: Model = {(): [(END, -0.5), (5, -1.0), (6, -2.0), (7, -3.0)]}
    search = BeamSearch(beams(ignore_eos=True), max_tokens=4)
    assert [step.token for step in advance(search, [()] * 2, told)] == [END, 5]


# -- the same as the reference -----------------------------------------------


def as_a_model(request: Request, vocab: int, most: int) -> BeamSearch:
    """The search with the candidates that a runner would tell."""
    search = BeamSearch(request, most)
    outputs: list[tuple[int, ...]] = [()] * request.beam_width
    while True:
        told = [
            [
                Candidate(*one)
                for one in likeliest(digest_of(request, list(tokens)), vocab, request.candidates)
            ]
            for tokens in outputs
        ]
        going = search.advance(outputs, told)
        if not going:
            return search
        assigned = dict(enumerate(going))
        search.follow(assigned)
        outputs = [(*outputs[step.parent], step.token) for step in assigned.values()]


def invented(r: Random, vocab: int) -> Request:
    width, most = r.randint(2, 5), r.randint(1, 9)
    tokens = [r.randrange(vocab) for _ in range(r.randint(0, 3))]
    return ask(
        "a",
        [r.randrange(vocab) for _ in range(r.randint(1, 5))],
        max_tokens=most,
        min_tokens=r.choice([0, 0, r.randint(0, most)]),
        eos_token_ids=tokens[:1],
        stop_token_ids=tokens[1:],
        ignore_eos=r.random() < 0.2,
        n=r.randint(1, width),
        beam_width=width,
        length_penalty=r.choice([1.0, 0.0, -0.5, 0.7, 2.0]),
        early_stopping=r.choice([True, False, "never"]),
    )


@pytest.mark.parametrize("vocab", [1, 2, 3, 7, 30])
@pytest.mark.parametrize("seed", range(40))
def test_a_search_on_random_models_is_that_of_the_reference(seed: int, vocab: int) -> None:
    """Also where the vocabulary is smaller than the width, and where all of it stops."""
    request = invented(Random(seed), vocab)
    assert request.max_tokens is not None
    found = as_a_model(request, vocab, request.max_tokens).choices()
    assert list(found) == beam_search(request, vocab, max_model_len=64)
    assert 1 <= len(found) <= request.n


def test_a_vocabulary_smaller_than_the_width_still_fills_all_beams() -> None:
    request = beams(4, n=4, max_tokens=3, eos_token_ids=())
    search = as_a_model(request, vocab=2, most=3)
    assert len({choice.tokens for choice in search.choices()}) == 4
    assert [list(choice.tokens) for choice in search.choices()] == [
        list(choice.tokens) for choice in beam_search(request, 2, 64)
    ]


def test_beams_that_go_on_from_another_are_counted_as_forks() -> None:
    scheduler = small()
    scheduler.submit(ask("a", 5, max_tokens=8, beam_width=4), 0.0)
    pipeline = Pipeline(scheduler, depth=1).run()
    moved = sum(new.resumed for plan in pipeline.plans for new in plan.admitted)
    assert moved > 0
    assert scheduler.stats.forks == 3 + moved


def test_a_beam_that_was_preempted_forgets_what_it_reported() -> None:
    scheduler = steps.make(max_num_batched_tokens=4)
    scheduler.submit(steps.request("b", [1, 2, 3], max_tokens=4, beam_width=2), 0.0)
    family = scheduler.state.sequence_groups["b"]
    while not scheduler.stats.sampled:
        plan = scheduler.plan(0.0)
        told = {
            label: [(5, -1.0), (6, -2.0), (7, -3.0), (8, -4.0)] for label in steps.sampling(plan)
        }
        ids, scores = dict.fromkeys(told, (5,)), dict.fromkeys(told, (-1.0,))
        scheduler.commit(plan, StepResult.of(plan, ids, scores, told), 0.0)
    family.reports[0] = []  # one of the two has told its candidates
    scheduler.reset_prefix_cache(reset_running_requests=True)
    assert family.reports == {}


# -- beams of continuations --------------------------------------------------


def assigned(*pairs: tuple[int, int]) -> dict[int, tuple[int, int]]:
    """Parent and token of the continuation that each beam takes, best first."""
    made = [Continuation(parent, token, -float(rank)) for rank, (parent, token) in enumerate(pairs)]
    return {beam: (one.parent, one.token) for beam, one in assign(made).items()}


def test_the_best_continuation_of_a_beam_stays_in_its_place() -> None:
    assert assigned((1, 5), (0, 6), (2, 7)) == {1: (1, 5), 0: (0, 6), 2: (2, 7)}


def test_further_continuations_take_the_beams_that_none_continues() -> None:
    assert assigned((1, 5), (1, 6), (1, 7)) == {1: (1, 5), 0: (1, 6), 2: (1, 7)}
    assert assigned((2, 5), (0, 6), (2, 7)) == {2: (2, 5), 0: (0, 6), 1: (2, 7)}


def test_assigned_continuations_keep_their_order() -> None:
    assert list(assigned((2, 5), (0, 6), (2, 7))) == [2, 0, 1]
