"""Keyword arguments of `generate` and `chat`: vLLM's names work, or are refused by name."""

from dataclasses import fields
from typing import Any, get_type_hints

import pytest

from paceline.core.errors import RequestError
from paceline.engine.api import GenerationRequest, SamplingParams
from paceline.engine.arguments import (
    TEMPLATE,
    UNSUPPORTED,
    SamplingFields,
    TemplateFields,
    sampling_of,
    split,
)


def test_every_field_of_the_params_can_be_given_by_name() -> None:
    hints = get_type_hints(SamplingParams)
    wanted = {one.name: hints[one.name] for one in fields(SamplingParams)}
    assert get_type_hints(SamplingFields) == wanted


def test_fields_of_the_template_are_those_of_a_request() -> None:
    hints = get_type_hints(GenerationRequest)
    given = get_type_hints(TemplateFields)
    assert {name: given[name] for name in TEMPLATE} == {name: hints[name] for name in TEMPLATE}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_is_not_supported_is_refused_by_name(name: str) -> None:
    assert sampling_of({name: None, "n": 2}) == {"n": 2}
    with pytest.raises(RequestError, match=f"^{name} is not supported: {UNSUPPORTED[name]}"):
        sampling_of({name: "x"})


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(RequestError, match="'max_token'; did you mean 'max_tokens'"):
        sampling_of({"max_token": 8})
    with pytest.raises(RequestError, match=r"unknown argument 'xyzzy'$"):
        sampling_of({"xyzzy": 8})


def test_variables_have_another_name_in_vllm() -> None:
    given: dict[str, Any] = {"chat_template_kwargs": {"a": 1}, "tools": [], "n": 2}
    assert split(given) == ({"tools": [], "variables": {"a": 1}}, {"n": 2})
    with pytest.raises(RequestError, match="are the same"):
        split(given | {"variables": {}})
