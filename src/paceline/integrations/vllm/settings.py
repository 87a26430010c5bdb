"""Converts settings and requests of vLLM, and refuses what our scheduler lacks."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import inf
from typing import Any

from paceline.core.errors import ConfigError, RequestError
from paceline.core.plan import Ended
from paceline.core.request import Request
from paceline.core.settings.config import Config, JournalConfig, PolicyConfig, QueueConfig
from paceline.integrations.vllm.worker_steps import NULL_BLOCKS

VLLM_POLICIES = ("fcfs", "priority")
# What makes our scheduler decide as vLLM's: it admits a prompt whose first chunk fits, reuses free
# blocks in the order in which they were freed, and does not let old requests go first.
AS_VLLM: dict[str, Any] = {"reserve_full_prompt": False, "free_order": "lru", "ageing_s": inf}
CHOOSABLE = frozenset(
    {
        *(
            setting.name
            for kind in (PolicyConfig, QueueConfig, JournalConfig)
            for setting in fields(kind)
        ),
        *("reserve_full_prompt", "watermark", "free_order", "discipline", "max_wait"),
    }
)
EXPLAIN = "explain_over_s"

REFUSED = {
    "encoder inputs": "images, audio and encoder-decoder models need vLLM's encoder cache",
    "pooling": "requests that end without a token are left to vLLM's scheduler",
    "prompt_embeds": "a prefix cache of ours knows prompts by their tokens",
    "kv_transfer_config": "KV connectors plan with vLLM's block manager",
    "ec_transfer_config": "encoder connectors plan with vLLM's encoder cache",
    "kv_events_config": "KV events name blocks by vLLM's hashes",
    "kv_cache_metrics": "they sample the blocks of vLLM's block manager",
    "several KV cache groups": "the workers of hybrid models expect blocks of each group",
    "attention other than full": "blocks that a window has left behind would be kept",
    "pipeline parallelism": "a step is planned before the tokens of the previous one are known",
    "context parallelism": "blocks are spread over ranks",
    "EAGLE and MTP": "a hit in the prefix cache lacks the hidden states that their drafts need",
    "the second model runner": "VLLM_USE_V2_MODEL_RUNNER has messages of its own",
}
HINTS = ("tenant", "deadline", "token_deadline")  # in `extra_args`, or `vllm_xargs` over HTTP


def refuse(used: Mapping[str, bool]) -> None:
    """ConfigError that lists every feature in use that this scheduler does not have."""
    found = [f"{name} ({REFUSED[name]})" for name, is_used in used.items() if is_used]
    if found:
        raise ConfigError(
            f"PacelineScheduler does not support {'; '.join(found)}: turn it off, or run without "
            "--scheduler-cls"
        )


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """The settings of a vLLM engine that bind its scheduler."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    num_blocks: int  # with those that vLLM keeps for itself
    block_size: int
    policy: str
    enable_prefix_caching: bool
    enable_chunked_prefill: bool
    long_prefill_token_threshold: int
    max_loras: int = 0
    num_speculative_tokens: int = 0


def scheduler_config(limits: EngineLimits, chosen: Mapping[str, Any]) -> Config:
    """The settings of our scheduler: what vLLM has, and what was `chosen` for ours.

    With a policy of vLLM it decides as vLLM does. With another one, and wherever a setting is
    chosen, it is ours.
    """
    for name in sorted(chosen.keys() - CHOOSABLE):
        hint = ": vLLM has a flag for it" if name in Config.names() else ""
        raise ConfigError(
            f"{name!r} cannot be set in additional_config['paceline']{hint}; "
            f"there are {', '.join(sorted(CHOOSABLE))}, {EXPLAIN}"
        )
    length = limits.max_model_len
    if not limits.enable_chunked_prefill:
        length = min(length, limits.max_num_batched_tokens)  # a prompt is computed in one step
    policy = chosen.get("policy", limits.policy)
    return Config.of(
        **{
            "max_num_seqs": limits.max_num_seqs,
            "max_num_batched_tokens": limits.max_num_batched_tokens,
            "max_model_len": length,
            "num_blocks": limits.num_blocks - NULL_BLOCKS,
            "block_size": limits.block_size,
            "policy": policy,
            "enable_prefix_caching": limits.enable_prefix_caching,
            "enable_chunked_prefill": limits.enable_chunked_prefill,
            "long_prefill_token_threshold": limits.long_prefill_token_threshold,
            "max_loras": limits.max_loras,
            "num_speculative_tokens": limits.num_speculative_tokens,
            "speculation": "fixed",
            **(AS_VLLM if policy in VLLM_POLICIES else {}),
            **chosen,
        }
    )


# pyright: reportMissingModuleSource=false


def hints(extra_args: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a client passes to our policies, besides the priority."""
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
