"""Translates requests and outputs between Dynamo's messages and those of an engine."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from dynamo.common.backend import GenerateChunk, GenerateRequest
from dynamo.common.utils.token_ids import token_ids_to_list

from paceline.core.errors import RequestError
from paceline.engine.api import (
    Alternative,
    GenerationRequest,
    PromptLogprobs,
    RequestOutput,
    SamplingParams,
    TextDelta,
    TokenLogprob,
)
from paceline.engine.sampling_rules import SamplingRules
from paceline.structured.request_fields import KINDS, OPTIONS

Fields = Mapping[str, Any]

# Fields of Dynamo's groups go to fields of `SamplingParams` with the same name, except these.
READ_APART = ("n", "max_tokens", "stop_token_ids", "guided_decoding", "structured_outputs")
GROUPS = ("sampling_options", "stop_conditions", "output_options")
SAME_NAMES = {one.name for one in fields(SamplingParams)}.difference(READ_APART)
STOP_TOKENS = ("stop_token_ids", "stop_token_ids_visible", "stop_token_ids_hidden")
PROMPT_ALONE = {"max_tokens": 1, "min_tokens": 0, "ignore_eos": True, "stop": None}
REASONS = {"abort": "cancelled"}  # Dynamo's names, where they are others
TRANSFER = "kv_transfer_params"  # the field of what a prefill worker hands to a decode worker


def generation_of(
    request: GenerateRequest, request_id: str, rules: SamplingRules, *, prefill: bool
) -> GenerationRequest:
    """A request as the engine takes it. With `prefill`, only the prompt is computed, and its KV is
    kept for the decode worker."""
    if request.get("multi_modal_data"):
        raise RequestError("a Dynamo worker reads no images; remove them")
    routing: Fields = request.get("routing") or {}
    return GenerationRequest(
        prompt_token_ids=token_ids_to_list(request["token_ids"]),
        params=params_of(request, rules, prefill=prefill),
        request_id=request_id,
        priority=-int(routing.get("priority") or 0),  # Dynamo's larger ones go first
        cache_salt=routing.get("cache_salt") or "",
        kv_transfer_params={"do_remote_decode": True} if prefill else handed_over(request),
    )


def handed_over(request: GenerateRequest) -> dict[str, Any] | None:
    """The KV transfer parameters of the prefill worker; None if there was none."""
    result = request.get("prefill_result") or {}
    handed: Fields = result.get("disaggregated_params") or {}
    return handed.get(TRANSFER)


def params_of(request: GenerateRequest, rules: SamplingRules, *, prefill: bool) -> SamplingParams:
    """The sampling parameters, completed by the defaults of the model."""
    sampling, stopping, reporting = (dict(request.get(group) or {}) for group in GROUPS)
    if (choices := sampling.get("n") or 1) > 1:
        raise RequestError(
            f"n is {choices}; a Dynamo worker returns one choice: send several requests"
        )
    if stopping.get("max_thinking_tokens") is not None:
        raise RequestError("max_thinking_tokens is not supported; remove it")
    if prefill:
        stopping |= PROMPT_ALONE
    given = {
        name: value
        for name, value in (sampling | stopping | reporting).items()
        if name in SAME_NAMES and value is not None
    }
    stop_tokens = {one for name in STOP_TOKENS for one in stopping.get(name) or ()}
    return rules.params(
        **given,
        max_tokens=stopping.get("max_tokens"),
        stop_token_ids=sorted(stop_tokens),
        structured_outputs=guided(sampling.get("guided_decoding")),
    )


def guided(decoding: Fields | None) -> dict[str, Any] | None:
    """Dynamo's `guided_decoding` in vLLM's form. The library that it names is not ours to choose
    for a single request."""
    fields = {name: one for name, one in (decoding or {}).items() if one is not None}
    return {name: one for name, one in fields.items() if name in KINDS or name in OPTIONS} or None


def chunk_of(delta: TextDelta) -> GenerateChunk:
    """New tokens of a request that is not finished."""
    chunk: GenerateChunk = {"token_ids": list(delta.token_ids), "index": 0}
    if delta.logprobs:
        chunk["log_probs"] = [one.chosen.logprob for one in delta.logprobs]
        if any(one.top for one in delta.logprobs):
            chunk["top_logprobs"] = [ranked(one) for one in delta.logprobs]
    return chunk


def ranked(token: TokenLogprob) -> list[dict[str, Any]]:
    """The likeliest tokens, best first."""
    return [{"rank": rank, **entry(one)} for rank, one in enumerate(token.top, 1)]


def entry(one: Alternative) -> dict[str, Any]:
    return {
        "token_id": one.token_id,
        "token": one.text,
        "logprob": one.logprob,
        "bytes": list(one.bytes),
    }


def last_chunk(delta: TextDelta, output: RequestOutput, *, prefill: bool) -> GenerateChunk:
    """The last tokens, why they are the last ones, and all that is known at the end."""
    chunk, usage = chunk_of(delta), output.usage
    reason = delta.finish_reason or "error"
    chunk["finish_reason"] = REASONS.get(reason, reason)
    chunk["completion_usage"] = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
    if prefill:
        kept = output.kv_transfer_params
        chunk["disaggregated_params"] = {TRANSFER: None if kept is None else dict(kept)}
    if output.prompt_logprobs is not None:
        chunk["engine_data"] = {"prompt_logprobs": prompt_entries(output.prompt_logprobs)}
    return chunk


def prompt_entries(tokens: PromptLogprobs) -> list[dict[str, Any] | None]:
    """For each token of the prompt, log-probabilities by token id; None for the first token."""
    return [
        None
        if token is None
        else {
            str(one.token_id): {"logprob": one.logprob, "rank": rank, "decoded_token": one.text}
            for rank, one in (*enumerate(token.top, 1), (token.rank, token.chosen))
        }
        for token in tokens
    ]
