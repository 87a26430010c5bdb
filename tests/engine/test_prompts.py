"""Prompts, conversations and sampling parameters in every form that callers give."""

from typing import Any

import numpy as np
import pytest

from paceline.core.errors import RequestError
from paceline.engine.api import GenerationRequest, SamplingParams
from paceline.engine.prompts import (
    as_generation,
    conversations,
    only,
    only_conversation,
    several,
    with_params,
)

MESSAGE = {"role": "user", "content": "hello"}
GREEDY = SamplingParams(temperature=0.0)


@pytest.mark.parametrize(
    ("given", "count"),
    [
        ("hello", 1),
        ([5, 6], 1),
        (np.array([5, 6]), 1),
        ({"prompt": "hello"}, 1),
        (GenerationRequest(prompt="hello"), 1),
        (["hello", "there"], 2),
        ([[5, 6], "there", GenerationRequest(prompt="a")], 3),
        ([MESSAGE], 1),
        ([[MESSAGE], [MESSAGE, MESSAGE]], 2),
        ([{"prompt": "hello"}, {"prompt": "there"}], 2),
        ([], 0),
    ],
    ids=repr,
)
def test_one_prompt_and_several_are_distinguished(given: Any, count: int) -> None:
    assert len(several(given)) == count


@pytest.mark.parametrize(
    "given", [[5, 6], (5, 6), np.array([5, 6]), {"prompt_token_ids": [5, 6]}], ids=repr
)
def test_token_ids_in_any_sequence_are_plain_numbers(given: Any) -> None:
    ids = as_generation(given).prompt_token_ids
    assert ids == [5, 6]
    assert {type(one) for one in ids or ()} == {int}


@pytest.mark.parametrize("given", [b"a", {"text": "a"}, [True], [1.5], 7, None], ids=repr)
def test_anything_else_is_refused_with_the_forms_there_are(given: Any) -> None:
    with pytest.raises(RequestError, match="is no prompt"):
        as_generation(given)


def test_a_dict_is_a_prompt_with_its_salt() -> None:
    assert as_generation({"prompt": "a", "cache_salt": "b"}) == GenerationRequest(
        prompt="a", cache_salt="b"
    )
    both = as_generation({"prompt_token_ids": [5], "prompt": "a"})
    assert (both.prompt_token_ids, both.text, both.prompt) == ([5], "a", None)
    for given in ([MESSAGE], (MESSAGE,), {"messages": [MESSAGE]}):
        assert list(as_generation(given).messages or ()) == [MESSAGE]
    for given in ("x", ["x"]):
        shown = as_generation({"prompt": "a", "multi_modal_data": {"image": given}})
        assert shown.all_images() == ["x"]
    with pytest.raises(RequestError, match="parts of its messages"):
        as_generation({"messages": [MESSAGE], "multi_modal_data": {"image": "x"}})
    with pytest.raises(RequestError, match="only its key 'image' is supported"):
        as_generation({"prompt": "a", "multi_modal_data": {"video": []}})
    with pytest.raises(RequestError, match="2 conversations are given"):
        as_generation({"messages": [[MESSAGE], [MESSAGE]]})


def test_one_prompt_is_not_several() -> None:
    assert only(["hello"]) == only("hello") == GenerationRequest(prompt="hello")
    assert only_conversation([[MESSAGE]]) == [MESSAGE]
    with pytest.raises(RequestError, match="2 prompts are given; call generate once for each"):
        only(["a", "b"])
    with pytest.raises(RequestError, match="2 conversations are given; call chat once for each"):
        only_conversation([[MESSAGE], [MESSAGE]])


def test_nothing_is_no_prompt() -> None:
    with pytest.raises(RequestError, match=r"^\[\] is no prompt; give a text"):
        only([])
    with pytest.raises(RequestError, match="the conversation is empty"):
        only_conversation([])


def test_one_conversation_is_a_list_of_messages() -> None:
    assert conversations([MESSAGE]) == [[MESSAGE]]
    assert conversations([[MESSAGE], [MESSAGE, MESSAGE]]) == [[MESSAGE], [MESSAGE, MESSAGE]]
    with pytest.raises(RequestError, match="give a list of messages"):
        conversations("hello")


def test_params_are_for_all_prompts_or_one_for_each() -> None:
    given = [GenerationRequest(prompt="a"), GenerationRequest(prompt="b")]
    assert with_params(given, None) == given
    assert [one.params for one in with_params(given, GREEDY)] == [GREEDY, GREEDY]
    with pytest.raises(RequestError, match="2 prompts and 1 sampling_params"):
        with_params(given, [GREEDY])


def test_fields_by_name_replace_those_of_the_params() -> None:
    given = [GenerationRequest(prompt="a"), GenerationRequest(prompt="b", params=GREEDY)]
    first, second = with_params(given, None, {"max_tokens": 3})
    assert (first.params, second.params) == (
        SamplingParams(max_tokens=3),
        SamplingParams(temperature=0.0, max_tokens=3),
    )
    (both,) = with_params(given[:1], GREEDY, {"max_tokens": 3})
    assert both.params == second.params
