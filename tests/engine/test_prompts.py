"""Prompts, conversations and sampling parameters in every form that callers give."""

from typing import Any

import numpy as np
import pytest

from paceline.core.errors import RequestError
from paceline.engine.api import GenerationRequest, SamplingParams
from paceline.engine.prompts import as_generation, conversations, several, with_params

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
    with pytest.raises(RequestError, match="give a text, token ids, or a GenerationRequest"):
        as_generation(given)


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
