"""Keyword arguments of `generate` and `chat`, under the names that vLLM uses."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from typing import Any

from paceline.core.errors import RequestError
from paceline.engine.adapter_control import LoRARequests
from paceline.engine.params import SamplingFields, SamplingParams


class GenerateFields(SamplingFields, total=False):
    """Keyword arguments of `LLM.generate`: fields of `SamplingParams`, and vLLM's own."""

    use_tqdm: bool  # the same as `progress`
    lora_request: LoRARequests  # one for all prompts, or one for each


class TemplateFields(SamplingFields, total=False):
    """Keyword arguments of `AsyncLLM.chat`: fields of `SamplingParams`, and of the template."""

    tools: Sequence[Mapping[str, Any]] | None
    variables: Mapping[str, Any] | None
    chat_template_kwargs: Mapping[str, Any] | None  # the same as `variables`
    chat_template: str | None
    add_generation_prompt: bool
    continue_final_message: bool


class ChatFields(GenerateFields, TemplateFields, total=False):
    """Keyword arguments of `LLM.chat`."""


SAMPLING = [one.name for one in fields(SamplingParams)]
TEMPLATE = [
    "tools",
    "variables",
    "chat_template",
    "add_generation_prompt",
    "continue_final_message",
]
# Arguments that vLLM takes, and what to do instead.
UNSUPPORTED = {
    "bad_words": "words cannot be banned; see bad_token_ids",
    "chat_template_content_format": "templates get the content of a message as text",
    "data_parallel_rank": "there is one engine",
    "detokenize": "read token_ids and ignore the text",
    "guided_decoding": "see structured_outputs",
    "logits_processors": "see logit_bias, bad_token_ids and allowed_token_ids",
    "lora_request": "load the adapter, and give a GenerationRequest with its name as adapter",
    "mm_processor_kwargs": "only text is supported",
    "output_kind": "LLM returns whole outputs, and AsyncLLM streams the new text",
    "priority": "give a GenerationRequest with a priority",
    "prompt_token_ids": "give the token ids as the prompt",
    "request_id": "give a GenerationRequest with a request_id",
    "spaces_between_special_tokens": "the text has the bytes of the tokens",
    "tokenization_kwargs": "give token ids as the prompt",
    "trace_headers": "traces are not exported",
    "truncate_prompt_tokens": "prompts are not truncated; give a shorter one",
}


def split(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments of `chat` that are fields of the template, and the others."""
    rest = dict(given)
    if (alias := rest.pop("chat_template_kwargs", None)) is not None:
        if rest.get("variables") is not None:
            raise RequestError("chat_template_kwargs and variables are the same; give one of them")
        rest["variables"] = alias
    return {name: rest.pop(name) for name in TEMPLATE if name in rest}, rest


def sampling_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Check that arguments are fields of `SamplingParams`. None for one that is not supported is
    left out."""
    found = {name: value for name, value in given.items() if name in SAMPLING}
    for name, value in given.items():
        if name in found or (name in UNSUPPORTED and value is None):
            continue
        if name in UNSUPPORTED:
            raise RequestError(f"{name} is not supported: {UNSUPPORTED[name]}")
        close = get_close_matches(name, [*SAMPLING, *TEMPLATE], 1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise RequestError(f"unknown argument {name!r}{hint}")
    return found
