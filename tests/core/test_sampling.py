"""A choice of distribution is checked when it is made, and cannot change afterwards."""

import copy
import pickle
import re
from dataclasses import FrozenInstanceError, fields
from math import inf, nan
from typing import Any

import numpy as np
import pytest

from paceline.core.errors import RequestError
from paceline.core.sampling import GREEDY, LARGEST_ID, Sampling, ServiceLevel, listed

NUMBERS = {
    "temperature": ([0, 0.5, 1, 2.0, 2.5, 100, 1e38], [-0.1, 1.1e38]),
    "top_p": ([1e-9, 0.5, 1, 1.0], [0, 0.0, -0.5, 1.01]),
    "min_p": ([0, 0.05, 1.0], [-0.01, 1.01]),
    "repetition_penalty": ([0.001, 1, 1000.0], [0, 1e-40, -1.0, 2000.0]),
    "presence_penalty": ([-2, 0.3, 2.0], [-2.1, 2.1]),
    "frequency_penalty": ([-2, 0.3, 2.0], [-2.1, 2.1]),
}
INSIDE = [(name, value) for name, (inside, _) in NUMBERS.items() for value in inside]
OUTSIDE = [(name, value) for name, (_, outside) in NUMBERS.items() for value in outside]


# -- numbers ----------------------------------------------------------------


@pytest.mark.parametrize(("name", "value"), INSIDE)
def test_a_number_in_its_range_is_kept_as_a_float(name: str, value: float) -> None:
    for given in (value, np.float64(value), np.array([value])[0]):
        kept = getattr(Sampling(**{name: given}), name)
        assert type(kept) is float
        assert kept == value


@pytest.mark.parametrize(("name", "value"), OUTSIDE)
def test_a_number_outside_its_range_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(
        RequestError, match=rf"^{name} is {re.escape(str(value))}; it must lie in [\[(]"
    ):
        Sampling(**{name: value})


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [nan, inf, -inf, 10**400], ids=["nan", "inf", "-inf", "huge"])
def test_a_number_is_finite(name: str, value: float) -> None:
    with pytest.raises(RequestError, match=rf"^{name} is .*; it must lie in"):
        Sampling(**{name: value})


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", ["1", None, True, [1.0], 1j], ids=repr)
def test_what_is_no_number_is_refused(name: str, value: Any) -> None:
    with pytest.raises(RequestError, match=rf"^{name} is .*; it must be a number$"):
        Sampling(**{name: value})


@pytest.mark.parametrize("name", ["top_k", "logprobs", "prompt_logprobs"])
@pytest.mark.parametrize("value", ["1", 1.0, True, [1]], ids=repr)
def test_what_is_no_whole_number_is_refused(name: str, value: Any) -> None:
    with pytest.raises(RequestError, match=rf"^{name} is .*; it must be a whole number$"):
        Sampling(**{name: value})


def test_top_k_of_zero_or_minus_one_is_off() -> None:
    assert Sampling(top_k=-1).top_k == Sampling(top_k=0).top_k == 0
    assert Sampling(top_k=np.int32(7)).top_k == 7
    with pytest.raises(RequestError, match=r"^top_k is -2; it must be 0 or -1, for all tokens"):
        Sampling(top_k=-2)


@pytest.mark.parametrize("name", ["logprobs", "prompt_logprobs"])
def test_alternatives_are_counted(name: str) -> None:
    assert getattr(Sampling(), name) is None
    for count in (0, 1000):
        assert getattr(Sampling(**{name: count}), name) == count
    with pytest.raises(RequestError, match=rf"^{name} is -1; it cannot be negative$"):
        Sampling(**{name: -1})


def test_a_temperature_next_to_zero_is_zero() -> None:
    assert Sampling(temperature=9e-6).temperature == 0.0
    assert Sampling(temperature=9e-6).greedy
    assert not Sampling(temperature=1e-5).greedy


# -- token ids --------------------------------------------------------------


def test_biases_are_a_copy_that_cannot_be_written() -> None:
    mine = {7: 1, np.int64(3): np.float32(-0.5)}
    bias = Sampling(logit_bias=mine).logit_bias
    mine[7] = 9
    assert list(bias.items()) == [(3, -0.5), (7, 1.0)]
    assert all(type(token) is int and type(value) is float for token, value in bias.items())
    with pytest.raises(TypeError):
        bias[7] = 2.0  # type: ignore[index]


@pytest.mark.parametrize(
    ("bias", "complaint"),
    [
        ([(1, 2.0)], r"^logit_bias is \[\(1, 2\.0\)\]; it maps token ids to numbers$"),
        ({"1": 2.0}, r"^a token id of logit_bias is '1'; it must be a whole number$"),
        ({-1: 2.0}, r"^a token id of logit_bias is -1; it must lie in 0\.\.2147483647$"),
        ({LARGEST_ID + 1: 2.0}, r"^a token id of logit_bias is 2147483648; it must lie in"),
        ({5: 100.5}, r"^logit_bias of token 5 is 100\.5; it must lie in \[-100, 100\]$"),
        ({5: nan}, r"^logit_bias of token 5 is nan; it must lie in"),
        ({5: "a"}, r"^logit_bias of token 5 is 'a'; it must be a number$"),
    ],
)
def test_a_wrong_bias_is_refused(bias: Any, complaint: str) -> None:
    with pytest.raises(RequestError, match=complaint):
        Sampling(logit_bias=bias)


@pytest.mark.parametrize("name", ["allowed_token_ids", "bad_token_ids"])
def test_lists_of_tokens_are_kept_sorted_and_once(name: str) -> None:
    for ids in ([7, 3, 7], (3, 7), iter([7, 3]), np.array([7, 3])):
        kept = getattr(Sampling(**{name: ids}), name)
        assert kept == (3, 7)
        assert all(type(token) is int for token in kept)


@pytest.mark.parametrize("name", ["allowed_token_ids", "bad_token_ids"])
@pytest.mark.parametrize("ids", ["37", {3: 7}, 5], ids=repr)
def test_what_is_no_list_of_tokens_is_refused(name: str, ids: Any) -> None:
    with pytest.raises(RequestError, match=rf"^{name} is .*; it must be a list of token ids$"):
        Sampling(**{name: ids})


def test_some_token_must_be_left() -> None:
    assert Sampling(allowed_token_ids=[3, 4], bad_token_ids=[3]).allowed_token_ids == (3, 4)
    for bad in ([], [3, 4]):
        allowed = [3, 4] if bad else []
        with pytest.raises(RequestError, match=r"^allowed_token_ids leaves no token"):
            Sampling(allowed_token_ids=allowed, bad_token_ids=bad)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(logit_bias={2: 1.0, 100: 1.0}),
        Sampling(allowed_token_ids=[100, 3]),
        Sampling(bad_token_ids=[100]),
    ],
)
def test_ids_can_be_checked_against_a_vocabulary(sampling: Sampling) -> None:
    sampling.check_vocab(101)
    with pytest.raises(RequestError, match=r"^\w+ has 100, which is out of vocabulary; the"):
        sampling.check_vocab(100)


# -- what is asked for ------------------------------------------------------


def test_greedy_is_plain() -> None:
    assert Sampling(temperature=0) == GREEDY
    assert GREEDY.greedy
    assert GREEDY.plain
    assert not GREEDY.penalised


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.7},
        {"repetition_penalty": 1.1},
        {"repetition_penalty": 0.9},
        {"presence_penalty": 0.1},
        {"frequency_penalty": -0.1},
        {"logit_bias": {1: 1.0}},
        {"allowed_token_ids": [1]},
        {"bad_token_ids": [1]},
        {"logprobs": 0},
    ],
    ids=str,
)
def test_what_needs_more_than_the_largest_logit_is_not_plain(fields: dict[str, Any]) -> None:
    sampling = Sampling(**{"temperature": 0.0, **fields})
    assert not sampling.plain
    assert sampling.penalised == any("penalty" in name for name in fields)


def test_filters_leave_the_largest_logit_alone() -> None:
    assert Sampling(temperature=0, top_k=5, top_p=0.5, min_p=0.1, prompt_logprobs=1).plain


def test_it_is_frozen_and_comparable() -> None:
    sampling = Sampling(temperature=0.5, logit_bias={3: 1.0})
    with pytest.raises(FrozenInstanceError):
        sampling.temperature = 1.0  # type: ignore[misc]
    same = Sampling(temperature=0.5, logit_bias={3: 1.0})
    assert sampling == same
    assert hash(sampling) == hash(same)
    assert sampling != Sampling(temperature=0.5, logit_bias={3: 2.0})


def test_it_survives_the_way_to_another_process() -> None:
    sampling = Sampling(
        temperature=0.5, top_k=3, logit_bias={3: 1.0}, allowed_token_ids=[1, 2], logprobs=4
    )
    for other in (pickle.loads(pickle.dumps(sampling)), copy.deepcopy(sampling)):
        assert other == sampling
        assert list(other.logit_bias.items()) == [(3, 1.0)]


def test_the_docstring_names_every_field() -> None:
    described = {line.split()[0] for line in (Sampling.__doc__ or "").splitlines() if line.strip()}
    assert {setting.name for setting in fields(Sampling)} <= described


def test_processors_of_logits_are_functions_of_this_process() -> None:
    with pytest.raises(RequestError, match="logits_processors has 7, which is no function"):
        Sampling(logits_processors=(7,))  # type: ignore[arg-type]
    chosen = Sampling(logits_processors=(lambda ids, logits: logits,))
    with pytest.raises(RequestError, match="cannot be sent to another process"):
        pickle.dumps(chosen)


def test_long_lists_are_shortened() -> None:
    assert listed(["a"]) == "a"
    assert listed(["a", "b", "c"]) == "a, b and c"
    assert listed(["a", "b", "c", "d"], most=2) == "a, b and 2 more"


def test_targets_are_checked_and_filled_by_those_of_others() -> None:
    given = ServiceLevel.of({"ttft_ms": 500})
    assert given == ServiceLevel.of(given) == ServiceLevel(ttft_ms=500)
    assert ServiceLevel.of(None) is None
    assert given.filled(None) is given
    assert given.filled(ServiceLevel(ttft_ms=90, itl_ms=40)) == ServiceLevel(500, 40)
    for wrong in (7, {"tpot_ms": 3}):
        with pytest.raises(RequestError, match=r"slo is .*; it must be an object with ttft_ms"):
            ServiceLevel.of(wrong)
    for target, why in ((True, "must be a number"), ("5", "a number"), (0, "must be positive")):
        with pytest.raises(RequestError, match=f"slo: itl_ms is .*{why}"):
            ServiceLevel(itl_ms=target)  # pyright: ignore[reportArgumentType]
