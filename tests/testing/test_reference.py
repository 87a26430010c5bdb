"""The model without weights, what it makes of a request, and what a device knows of a slot."""

from itertools import product
from math import exp, isclose
from typing import Any

import numpy as np
import pytest

from paceline.core.multimodal import ImageInput
from paceline.core.plan import NO_BLOCK, Admitted
from paceline.core.request import Finish, Request
from paceline.testing.reference import (
    Track,
    beam_search,
    best_of,
    digest_of,
    likeliest,
    logprobs,
    mix,
    next_token,
    reference,
    start_digest,
)

VOCAB, MODEL_LENGTH = 5000, 40


def ask(name: str, *prompt: int, **fields: Any) -> Request:
    return Request(name, prompt, **fields)  # pyright: ignore[reportArgumentType]


A = ask("a", 1, 2, 3, 4, 5)


# -- the model ---------------------------------------------------------------


def test_salt_and_adapter_are_not_confused() -> None:
    starts = {
        start_digest(ask("a", 1, cache_salt=salt, adapter=adapter))
        for salt, adapter in [("", ""), ("x", ""), ("", "x"), ("xy", ""), ("x", "y")]
    }
    assert len(starts) == 5


def test_what_comes_before_is_all_that_counts() -> None:
    assert digest_of(A, [7, 8]) == digest_of(ask("b", 1, 2, 3, 4, 5, 7), [8])
    assert digest_of(A, [7, 8]) != digest_of(A, [8, 7])
    image = ask("a", 1, 2, 3, 4, 5, images=(ImageInput("cat", 1, 2),))
    assert digest_of(image, []) != digest_of(A, [])


@pytest.mark.parametrize("vocab", [1, 2, 7, 50])
def test_probabilities_add_up(vocab: int) -> None:
    values = logprobs(digest_of(A, []), vocab)
    assert len(values) == vocab
    assert isclose(sum(map(exp, values)), 1.0, rel_tol=1e-5)
    assert vocab == 1 or logprobs(digest_of(A, [1]), vocab) != values


def test_the_likeliest_come_first_and_equals_by_number() -> None:
    digest = digest_of(A, [])
    values = logprobs(digest, 50)
    best = likeliest(digest, 50, 50)
    assert sorted(token for token, _ in best) == list(range(50))
    assert [(-value, token) for token, value in best] == sorted(
        (-value, token) for token, value in best
    )
    assert all(values[token] == value for token, value in best)
    assert likeliest(digest, 50, 3) == best[:3]
    assert likeliest(digest, 2, 9) == likeliest(digest, 2, 2)


# -- one sequence ------------------------------------------------------------


def by_hand(request: Request, most: int) -> list[int]:
    digest = start_digest(request)
    for token in request.prompt.tolist():
        digest = mix(digest, token)
    outputs: list[int] = []
    for _ in range(most):
        outputs.append(next_token(request, digest, VOCAB))
        digest = mix(digest, outputs[-1])
    return outputs


LONG = by_hand(A, MODEL_LENGTH - 5)


@pytest.mark.parametrize(
    ("fields", "length", "finish"),
    [
        ({}, 35, "length"),
        ({"max_tokens": 7}, 7, "length"),
        ({"max_tokens": 100}, 35, "length"),
        ({"stop_token_ids": (LONG[3],)}, 4, "stop"),
        ({"eos_token_ids": (LONG[3],)}, 4, "stop"),
        ({"eos_token_ids": (LONG[3],), "ignore_eos": True, "max_tokens": 9}, 9, "length"),
        (
            {"eos_token_ids": (LONG[3],), "ignore_eos": True, "stop_token_ids": (LONG[5],)},
            6,
            "stop",
        ),
        ({"stop_token_ids": (LONG[3], LONG[5]), "min_tokens": 5}, 6, "stop"),
        ({"stop_token_ids": (LONG[3],), "min_tokens": 4}, 4, "stop"),
        ({"stop_token_ids": (LONG[3],), "max_tokens": 4}, 4, "stop"),
        ({"stop_token_ids": (LONG[3],), "max_tokens": 3}, 3, "length"),
    ],
)
def test_the_reference_ends_where_a_request_ends(
    fields: dict[str, Any], length: int, finish: str
) -> None:
    assert len(set(LONG[:6])) == 6, "the stop tokens above come up once"
    request = ask("a", 1, 2, 3, 4, 5, **fields)
    assert reference(request, VOCAB, MODEL_LENGTH) == (LONG[:length], finish)


@pytest.mark.parametrize("fields", [{"seed": 12345}, {"cache_salt": "x"}, {"adapter": "x"}])
def test_the_reference_depends_on_seed_and_content(fields: dict[str, Any]) -> None:
    other = ask("a", 1, 2, 3, 4, 5, **fields)
    assert reference(other, VOCAB, MODEL_LENGTH) != reference(A, VOCAB, MODEL_LENGTH)
    same = ask("z", 1, 2, 3, 4, 5, priority=3, tenant="t", arrival=9.0)
    assert reference(same, VOCAB, MODEL_LENGTH) == reference(A, VOCAB, MODEL_LENGTH)


def test_the_tokens_lie_within_the_vocabulary() -> None:
    assert set(reference(A, 3, 1000)[0]) <= {0, 1, 2}


def test_small_seeds_give_different_samples() -> None:
    samples = {tuple(reference(ask("a", 1, 2, seed=s), VOCAB, 12)[0]) for s in range(8)}
    assert len(samples) == 8


# -- the best of several -----------------------------------------------------


def score(request: Request, tokens: list[int], vocab: int) -> float:
    """The log-probability of some outputs."""
    each = [logprobs(digest_of(request, tokens[:place]), vocab) for place in range(len(tokens))]
    return sum(values[token] for values, token in zip(each, tokens, strict=True))


@pytest.mark.parametrize("number", [1, 2, 4])
def test_the_likeliest_samples_are_returned_best_first(number: int) -> None:
    request = ask("a", 1, 2, n=number, best_of=4, seed=9, max_tokens=6, stop_token_ids=(3, 4))
    samples = [reference(request.child(index), 20, MODEL_LENGTH)[0] for index in range(4)]
    assert len({tuple(tokens) for tokens in samples}) == 4
    samples.sort(key=lambda tokens: -score(request, tokens, 20) / len(tokens))
    assert best_of(request, 20, MODEL_LENGTH) == samples[:number]


# -- beams -------------------------------------------------------------------


def test_a_search_as_wide_as_everything_finds_the_best_there_is() -> None:
    """Three tokens of a vocabulary of three: nine beams see all there is to see."""
    request = ask("a", 1, 2, n=5, beam_width=9, max_tokens=3)
    every = [list(tokens) for tokens in product(range(3), repeat=3)]
    every.sort(key=lambda tokens: -score(request, tokens, 3))
    found = beam_search(request, 3, MODEL_LENGTH)
    assert [list(choice.tokens) for choice in found] == every[:5]
    assert all(choice.finish is Finish.LENGTH for choice in found)
    assert all(
        isclose(choice.score, score(request, list(choice.tokens), 3) / 3, rel_tol=1e-6)
        for choice in found
    )


def test_a_search_with_a_stop_token_finds_the_best_end() -> None:
    """Without a penalty for length, among all outputs that stop or are complete."""
    request = ask("a", 1, 2, beam_width=8, max_tokens=3, eos_token_ids=(0,), length_penalty=0.0)
    every = [(0,)]
    every += [(*tokens, 0) for size in (1, 2) for tokens in product((1, 2), repeat=size)]
    every += list(product((1, 2), repeat=3))
    best = max(every, key=lambda tokens: score(request, list(tokens), 3))
    (found,) = beam_search(request, 3, MODEL_LENGTH)
    assert found.tokens == best
    assert found.stop_token == (0 if best[-1] == 0 else None)


def test_a_search_ends_with_the_model_length() -> None:
    found = beam_search(ask("a", 1, 2, beam_width=2), 7, max_model_len=6)
    assert [len(choice.tokens) for choice in found] == [4]


def test_a_search_through_stop_tokens_alone_ends_at_once() -> None:
    request = ask("a", 1, 2, n=2, beam_width=2, eos_token_ids=(0, 1), max_tokens=5)
    found = beam_search(request, 2, MODEL_LENGTH)
    assert sorted(choice.tokens for choice in found) == [(0,), (1,)]
    later = ask("a", 1, 2, n=2, beam_width=2, eos_token_ids=(0, 1), max_tokens=5, min_tokens=3)
    assert {len(choice.tokens) for choice in beam_search(later, 2, MODEL_LENGTH)} == {3}


@pytest.mark.parametrize("early_stopping", [True, False, "never"])
def test_the_sooner_a_search_may_stop_the_less_it_finds(early_stopping: Any) -> None:
    """No way of stopping finds a better end than looking on until none is possible."""
    for prompt in range(20):
        fields = {"beam_width": 2, "max_tokens": 9, "eos_token_ids": (0,)}
        found = beam_search(ask("a", prompt, early_stopping=early_stopping, **fields), 5, 40)
        best = beam_search(ask("a", prompt, early_stopping="never", **fields), 5, 40)
        assert found[0].score <= best[0].score


def track() -> Track:
    request = Request("a", [5, 6, 7])  # pyright: ignore[reportArgumentType]
    tokens = np.array([5, 6, 7], np.int32)
    return Track.of(Admitted(0, request, tokens, 3, (4, 5), resumed=False, more=((NO_BLOCK, 8),)))


def test_a_track_has_a_table_for_each_group() -> None:
    made = track()
    assert (made.table, made.tables) == ([4, 5], [[4, 5], [NO_BLOCK, 8]])
    assert [made.block(1, index) for index in range(3)] == [NO_BLOCK, 8, NO_BLOCK]
    assert made.digests[-1] == digest_of(made.request, [])


def test_an_entry_is_written_once() -> None:
    made = track()
    made.map(1, 3, 9)
    assert made.tables == [[4, 5], [NO_BLOCK, 8, NO_BLOCK, 9]]
    with pytest.raises(AssertionError, match="'a' maps block 3 twice"):
        made.map(1, 3, 10)
