"""Requests and outputs in the words of Dynamo."""

from array import array
from typing import Any

import pytest

from paceline.core.errors import RequestError
from paceline.core.events import Timings
from paceline.engine.api import (
    Alternative,
    GenerationRequest,
    PromptLogprob,
    RequestOutput,
    SamplingParams,
    TextDelta,
    TokenLogprob,
    Usage,
)
from paceline.engine.sampling_rules import NO_RULES, SamplingRules
from paceline.integrations.dynamo.messages import chunk_of, generation_of, last_chunk

KEPT = {"do_remote_prefill": True, "remote_port": 5600}


def read(request: dict[str, Any], prefill: bool = False) -> GenerationRequest:
    made: Any = {"token_ids": [5, 6, 7], **request}
    return generation_of(made, "a", NO_RULES, prefill=prefill)


def params(**groups: Any) -> SamplingParams:
    return read(groups).params


def test_every_parameter_of_dynamo_reaches_the_engine() -> None:
    sampling = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.1,
        "seed": 3,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.2,
        "repetition_penalty": 1.1,
        "include_stop_str_in_output": True,
    }
    stopping = {"max_tokens": 9, "min_tokens": 2, "ignore_eos": True, "stop": ["zz"]}
    reporting = {"logprobs": 2, "prompt_logprobs": 1, "skip_special_tokens": False}
    groups: dict[str, Any] = {
        "sampling_options": {**sampling, "n": 1, "guided_decoding": {"choice": ["a", "b"]}},
        "stop_conditions": {
            **stopping,
            "stop_token_ids": [7],
            "stop_token_ids_visible": [8],
            "stop_token_ids_hidden": [2, 7],
        },
        "output_options": {**reporting, "formatted_prompt": None},
    }
    assert params(**groups) == SamplingParams(
        **sampling,
        **stopping,
        **reporting,
        stop_token_ids=(2, 7, 8),
        structured_outputs={"choice": ["a", "b"]},
    )


def test_beams_and_best_of_are_choices_of_one() -> None:
    beams = {"use_beam_search": True, "best_of": 3, "length_penalty": 0.5}
    assert params(sampling_options=beams).beams == 3
    assert params(sampling_options={"best_of": 4}).best_of == 4


@pytest.mark.parametrize(
    "form",
    [
        {"json": {"type": "object"}},
        {"regex": "a+"},
        {"grammar": 'root ::= "a"'},
        {"json": {"type": "object"}, "backend": "xgrammar", "regex": None},
    ],
)
def test_constraints_have_vllms_forms(form: dict[str, Any]) -> None:
    known = {name: one for name, one in form.items() if one is not None and name != "backend"}
    wanted = SamplingParams(structured_outputs=known).constraint
    assert params(sampling_options={"guided_decoding": form}).constraint == wanted
    assert params(sampling_options={"guided_decoding": {"json": None}}).constraint is None


def test_what_a_request_leaves_out_is_the_models_choice() -> None:
    rules = SamplingRules({"temperature": 0.2, "top_k": 4})
    given: Any = {"token_ids": [1], "sampling_options": {"top_k": 9, "temperature": None}}
    found = generation_of(given, "a", rules, prefill=False).params
    assert (found.temperature, found.top_k, found.max_tokens) == (0.2, 9, None)


def test_a_router_has_its_say() -> None:
    found = read({"routing": {"priority": 3, "cache_salt": "s", "dp_rank": 0}})
    assert (found.priority, found.cache_salt, found.request_id) == (-3, "s", "a")
    assert (read({}).priority, read({}).cache_salt) == (0, "")
    packed = array("i", [5, 6, 7]).tobytes()  # with DYN_TOKEN_IDS_AS_BYTES
    assert read({"token_ids": packed}).prompt_token_ids == [5, 6, 7]


def test_what_cannot_be_done_is_refused() -> None:
    for wrong, message in (
        ({"sampling_options": {"n": 2}}, "n is 2; a Dynamo worker returns one choice"),
        ({"stop_conditions": {"max_thinking_tokens": 5}}, "max_thinking_tokens"),
        ({"multi_modal_data": {"image_url": ["x"]}}, "reads no images"),
        ({"sampling_options": {"top_p": 2.0}}, "top_p is 2.0"),
    ):
        with pytest.raises(RequestError, match=message):
            read(wrong)


def test_a_prefill_worker_computes_the_prompt_alone() -> None:
    asked = {"stop_conditions": {"max_tokens": 50, "min_tokens": 20, "stop": ["a"]}}
    found = read(asked, prefill=True)
    assert (found.params.max_tokens, found.params.min_tokens, found.params.stop) == (1, 0, ())
    assert found.kv_transfer_params == {"do_remote_decode": True}
    chunk = last_chunk(delta(finish_reason="length"), output(KEPT), prefill=True)
    handed = {"disaggregated_params": chunk.get("disaggregated_params")}
    assert read({"prefill_result": handed}).kv_transfer_params == KEPT
    short = last_chunk(delta(finish_reason="length"), output(None), prefill=True)
    handed = {"disaggregated_params": short.get("disaggregated_params")}
    assert read({"prefill_result": handed}).kv_transfer_params is None
    assert read({}).kv_transfer_params is None


def delta(**fields: Any) -> TextDelta:
    return TextDelta(0, "xy", (4, 5), **fields)


def output(kept: dict[str, Any] | None = None, **fields: Any) -> RequestOutput:
    usage = Usage(prompt_tokens=3, completion_tokens=2, cached_tokens=1)
    whole = (delta(**fields),)
    return RequestOutput("a", None, (5, 6, 7), whole, usage, Timings(), kv_transfer_params=kept)


def test_chunks_have_tokens_and_their_alternatives() -> None:
    assert chunk_of(delta()) == {"token_ids": [4, 5], "index": 0}
    x, y = Alternative(4, -0.5, "x", b"x"), Alternative(5, -1.0, "y", b"y")
    both = TokenLogprob(x, (x, y)), TokenLogprob(y, ())
    chunk = chunk_of(delta(logprobs=both))
    assert chunk.get("log_probs") == [-0.5, -1.0]
    first = {"rank": 1, "token_id": 4, "token": "x", "logprob": -0.5, "bytes": [120]}
    second = {"rank": 2, "token_id": 5, "token": "y", "logprob": -1.0, "bytes": [121]}
    assert chunk.get("top_logprobs") == [[first, second], []]
    assert "top_logprobs" not in chunk_of(delta(logprobs=(TokenLogprob(x, ()),)))


def test_the_last_chunk_has_the_end_and_the_usage() -> None:
    x, y = Alternative(4, -0.5, "x", b"x"), Alternative(5, -1.0, "y", b"y")
    prompt = (None, PromptLogprob(y, (x,), rank=9))
    chunk = last_chunk(delta(finish_reason="abort"), output(prompt_logprobs=prompt), prefill=False)
    assert chunk == {
        "token_ids": [4, 5],
        "index": 0,
        "finish_reason": "cancelled",
        "completion_usage": {
            "prompt_tokens": 3,
            "completion_tokens": 2,
            "total_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 1},
        },
        "engine_data": {
            "prompt_logprobs": [
                None,
                {
                    "4": {"logprob": -0.5, "rank": 1, "decoded_token": "x"},
                    "5": {"logprob": -1.0, "rank": 9, "decoded_token": "y"},
                },
            ]
        },
    }
