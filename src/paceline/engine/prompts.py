"""The forms in which callers give prompts, conversations and sampling parameters."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any, cast

from paceline.core.errors import RequestError
from paceline.engine.api import GenerationRequest, Message, SamplingParams

Prompt = str | Sequence[int] | GenerationRequest
Params = SamplingParams | Sequence[SamplingParams]


def several(prompts: Any) -> list[Any]:
    """A text, a GenerationRequest, a dict or a list of numbers is one prompt.

    Other iterables hold prompts.
    """
    if isinstance(prompts, str | bytes | GenerationRequest | Mapping) or not isinstance(
        prompts, Iterable
    ):
        return [prompts]
    found = list(cast("Iterable[Any]", prompts))
    return [found] if found and isinstance(found[0], Integral) else found


def as_generation(prompt: Any) -> GenerationRequest:
    """Turn a prompt of any accepted form into a GenerationRequest, or raise RequestError."""
    match prompt:
        case GenerationRequest():
            return prompt
        case str():
            return GenerationRequest(prompt=prompt)
        case {"prompt": str(text)} if len(prompt) == 1:
            return GenerationRequest(prompt=text)
        case {"prompt_token_ids": ids} if len(prompt) == 1:
            return as_generation(ids)
        case _ if isinstance(prompt, bytes | Mapping) or not isinstance(prompt, Iterable):
            ids: list[Any] = [None]
        case _:
            ids = list(cast("Iterable[Any]", prompt))
    if not all(isinstance(one, Integral) for one in ids) or bool in map(type, ids):
        raise RequestError(
            f"{prompt!r:.80} is no prompt; give a text, token ids, or a GenerationRequest"
        )
    return GenerationRequest(prompt_token_ids=[int(one) for one in ids])


def conversations(messages: Any) -> list[Sequence[Message]]:
    """Turn one conversation, or several, into a list of them."""
    given: list[Any] = [messages] if isinstance(messages, str | Mapping) else list(messages)
    is_one = isinstance(messages, list | tuple) and given and isinstance(given[0], Mapping)
    found: list[Any] = [given] if is_one else given
    for one in found:
        if isinstance(one, str | Mapping) or not all(isinstance(each, Mapping) for each in one):
            raise RequestError(f"{one!r:.80} is no conversation; give a list of messages")
    return found


def with_params(
    generations: list[GenerationRequest], params: Params | None
) -> list[GenerationRequest]:
    """Give each request its own sampling params, or all of them the same."""
    if params is None:
        return generations
    if isinstance(params, SamplingParams):
        return [replace(generation, params=params) for generation in generations]
    given: Any = params
    if isinstance(given, Mapping) or not all(isinstance(one, SamplingParams) for one in given):
        raise RequestError(
            f"sampling_params is {params!r:.80}; give SamplingParams, or a list of them"
        )
    if len(params) != len(generations):
        raise RequestError(
            f"there are {len(generations)} prompts and {len(params)} sampling_params; "
            "give one for all prompts, or one for each"
        )
    return [
        replace(generation, params=one) for generation, one in zip(generations, params, strict=True)
    ]
