"""Requests of vLLM as requests of ours."""

from collections.abc import Mapping
from typing import Any

from paceline.core.errors import RequestError
from paceline.core.plan import Ended
from paceline.core.request import Request

HINTS = ("tenant", "deadline", "token_deadline")  # in `extra_args`, or `vllm_xargs` over HTTP


def hints(extra_args: Mapping[str, Any] | None) -> dict[str, Any]:
    """What clients say about a request for our policies, besides its priority."""
    return {name: extra_args[name] for name in HINTS if name in extra_args} if extra_args else {}


def our_request(request: Any, arrival: float) -> Request:
    """The same request for our scheduler. RequestError if it cannot be served."""
    params = request.sampling_params
    if params is None or request.prompt_token_ids is None or request.mm_features:
        raise RequestError(f"request {request.request_id!r} is not a text prompt that is sampled")
    eos, lora = request.eos_token_id, request.lora_request
    return Request(
        id=request.request_id,
        prompt=request.prompt_token_ids,
        max_tokens=request.max_tokens,
        min_tokens=params.min_tokens,
        ignore_eos=params.ignore_eos,
        eos_token_ids=() if eos is None else (eos,),
        stop_token_ids=tuple(params.stop_token_ids or ()),
        priority=request.priority,
        arrival=arrival,
        cache_salt=request.cache_salt or "",
        adapter="" if lora is None else lora.lora_name,
        reads_cache=not request.skip_reading_prefix_cache,
        **hints(params.extra_args),
    )


def stop_reason(request: Any, end: Ended) -> int | None:
    """The stop token that ended a request; None for the end token of the model."""
    is_eos = end.stop_token == request.eos_token_id and not request.sampling_params.ignore_eos
    return None if is_eos else end.stop_token
