"""Params: the names the field knows, and errors that name the field."""

import copy
import pickle
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.core.constraint import Constraint
from paceline.core.errors import RequestError
from paceline.core.sampling import Sampling
from paceline.engine.params import SamplingParams


def test_everything_the_runner_needs_is_passed_on() -> None:
    given: dict[str, Any] = {
        "temperature": 0.5,
        "top_k": 7,
        "top_p": 0.9,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "logit_bias": {5: 1.5},
        "allowed_token_ids": (4, 5),
        "bad_token_ids": (9,),
        "logprobs": 3,
        "prompt_logprobs": 2,
    }
    params = SamplingParams(**given)
    assert params.sampling == Sampling(**given)
    assert params.sampling is params.sampling, "it is built once"
    assert replace(params, top_k=3).sampling.top_k == 3


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -1.0),
        ("temperature", "hot"),
        ("top_p", 0.0),
        ("top_k", -2),
        ("min_p", 2.0),
        ("presence_penalty", 3.0),
        ("frequency_penalty", -3.0),
        ("repetition_penalty", 0.0),
        ("n", 0),
        ("n", True),
        ("best_of", 0),
        ("beam_width", -1),
        ("length_penalty", float("nan")),
        ("length_penalty", 700.0),
        ("length_penalty", -700.0),
        ("stop", "z" * 4097),
        ("stop", ["z"] * 4097),
        ("length_penalty", "long"),
        ("early_stopping", "soon"),
        ("seed", 1.5),
        ("seed", 2**64),
        ("max_tokens", -1),
        ("min_tokens", 17),
        ("min_tokens", -1),
        ("stop", 5),
        ("stop", ["fine", ""]),
        ("stop", [5]),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", "five"),
        ("ignore_eos", "yes"),
        ("skip_special_tokens", 1),
        ("include_stop_str_in_output", None),
        ("use_beam_search", 1),
        ("logprobs", -2),
        ("prompt_logprobs", -2),
        ("logit_bias", {1: 1000.0}),
        ("logit_bias", [1]),
        ("bad_token_ids", [-5]),
        ("bad_words", [""]),
        ("bad_words", [7]),
        ("bad_words", ["x" * 70_000]),
        ("allowed_token_ids", []),
    ],
)
def test_an_error_names_its_field(name: str, value: Any) -> None:
    with pytest.raises(RequestError, match=name):
        SamplingParams(**{name: value})


def test_banned_words_become_tokens_at_the_start_of_a_word_and_within() -> None:
    found = {"no": [7], " no": [8], "never": [3, 4], " never": [3, 4], "x": [9], " x": []}
    words = ["no", " never", "x"]
    params = SamplingParams(bad_words=words, bad_token_ids=[1]).with_banned_tokens(found.get)  # type: ignore[arg-type]
    assert params.sampling.bad_token_ids == (1, 7, 8, 9)
    assert params.constraint == Constraint.any_text().without(((3, 4),))
    held = SamplingParams(bad_words="never", structured_outputs={"regex": "a"})
    held = held.with_banned_tokens(found.__getitem__)
    assert held.constraint == Constraint.regex("a").without(((3, 4),))
    plain = SamplingParams(max_tokens=3)
    assert plain.with_banned_tokens(found.__getitem__) is plain


def test_stop_is_one_string_or_several() -> None:
    assert SamplingParams(stop="end").stop == ("end",)
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")
    assert SamplingParams(stop=None).stop == ()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "beams"),
    [
        ({"use_beam_search": True, "n": 3}, 3),
        ({"use_beam_search": True, "best_of": 4}, 4),
        ({"use_beam_search": True, "beam_width": 5, "n": 2}, 5),
        ({"beam_width": 2}, 2),
        ({"best_of": 4}, 0),
    ],
)
def test_beams(given: dict[str, Any], beams: int) -> None:
    params = SamplingParams(**given)
    assert params.beams == beams
    assert params.silent


def test_a_beam_search_needs_two_beams_and_as_many_as_it_returns() -> None:
    with pytest.raises(RequestError, match="beam_width"):
        SamplingParams(use_beam_search=True)
    with pytest.raises(RequestError, match="beam_width"):
        SamplingParams(beam_width=2, n=3)


@pytest.mark.parametrize(
    "given",
    [
        {"presence_penalty": 0.5},
        {"frequency_penalty": 0.5},
        {"repetition_penalty": 1.5},
        {"min_tokens": 2},
        {"logit_bias": {3: -100.0}},
        {"bad_token_ids": [3]},
        {"bad_words": ["no"]},
        {"allowed_token_ids": [3]},
        {"allowed_token_ids": []},
        {"temperature": 0.7},
        {"top_p": 0.9},
        {"top_k": 5},
        {"min_p": 0.1},
    ],
    ids=lambda given: next(iter(given)),
)
def test_a_beam_search_goes_by_the_model_alone(given: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=next(iter(given))):
        SamplingParams(beam_width=2, **given)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_changes_nothing_does_not_hinder_a_beam_search(temperature: float) -> None:
    plain: dict[str, Any] = {"logit_bias": {}, "bad_token_ids": [], "repetition_penalty": 1}
    SamplingParams(beam_width=2, temperature=temperature, top_p=1.0, top_k=-1, **plain)


@pytest.mark.parametrize("given", [{"length_penalty": 2.0}, {"early_stopping": True}])
def test_what_only_a_beam_search_reads_is_refused_without_one(given: dict[str, Any]) -> None:
    (name,) = given
    with pytest.raises(RequestError, match=f"{name} is for beam search"):
        SamplingParams(best_of=2, **given)
    SamplingParams(beam_width=2, **given)


def test_best_of_and_beam_width_name_one_number() -> None:
    SamplingParams(beam_width=4, best_of=4)
    with pytest.raises(RequestError, match="best_of is 8 and beam_width 4"):
        SamplingParams(beam_width=4, best_of=8)


def test_logprobs_are_for_what_is_told_as_it_comes() -> None:
    SamplingParams(n=2, logprobs=1)
    with pytest.raises(RequestError, match="logprobs"):
        SamplingParams(n=1, best_of=2, logprobs=1)


def test_they_survive_the_way_to_another_process() -> None:
    params = SamplingParams(logit_bias={3: 1.0}, stop=["a"], allowed_token_ids=[1, 2], n=2)
    for other in (pickle.loads(pickle.dumps(params)), copy.deepcopy(params)):
        assert other == params
        assert other.logit_bias == {3: 1.0}
        assert other.sampling == params.sampling


@pytest.mark.parametrize(
    "given",
    [
        Constraint.regex("a+"),
        {"regex": "a+"},
        {"regex": "a+", "json": None},
        SimpleNamespace(regex="a+", json=None, disable_any_whitespace=False),  # as vLLM's class
    ],
)
def test_structured_outputs_are_a_constraint_or_what_vllm_takes(given: Any) -> None:
    params = SamplingParams(structured_outputs=given)
    assert params.constraint == params.structured_outputs == Constraint.regex("a+")
    assert pickle.loads(pickle.dumps(params)) == replace(params) == params
    assert SamplingParams().constraint is None


@pytest.mark.parametrize("given", ["a+", 3, {}, {"regex": 3}, {"regx": "a"}, SimpleNamespace(a=1)])
def test_structured_outputs_that_constrain_nothing_are_refused(given: Any) -> None:
    with pytest.raises(RequestError, match=r"structured_outputs|regex"):
        SamplingParams(structured_outputs=given)
