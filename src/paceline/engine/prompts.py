"""The forms in which callers give prompts, conversations and sampling parameters."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from types import MappingProxyType
from typing import Any, cast

from paceline.core.errors import RequestError
from paceline.engine.api import GenerationRequest, Message, SamplingParams
from paceline.engine.arguments import sampling_of
from paceline.engine.sampling_rules import MODEL_DEFAULTS, NO_RULES, SamplingRules

MANY_MESSAGES = 16  # a longer conversation is rendered on a thread

Prompt = str | Sequence[int] | Mapping[str, Any] | Sequence[Message] | GenerationRequest
Params = SamplingParams | Sequence[SamplingParams]

NOTHING_GIVEN: Mapping[str, Any] = MappingProxyType({})
FORMS = "give a text, token ids, messages, or a GenerationRequest"
# Of a prompt that is a dict.
KEYS = ("prompt", "prompt_token_ids", "messages", "cache_salt", "multi_modal_data")


def several(prompts: Any) -> list[Any]:
    """A text, a GenerationRequest, a dict, a list of numbers or a list of messages is one prompt.

    Other iterables hold prompts.
    """
    if isinstance(prompts, str | bytes | GenerationRequest | Mapping) or not isinstance(
        prompts, Iterable
    ):
        return [prompts]
    found = list(cast("Iterable[Any]", prompts))
    is_one = bool(found) and (isinstance(found[0], Integral) or is_message(found[0]))
    return [found] if is_one else found


def only(prompt: Any) -> GenerationRequest:
    """The request of a single prompt. RequestError for several of them."""
    found = several(prompt)
    if not found:
        raise no_prompt(prompt)
    if len(found) > 1:
        raise RequestError(f"{len(found)} prompts are given; call generate once for each")
    return as_generation(found[0])


def as_generation(prompt: Any, params: SamplingParams = MODEL_DEFAULTS) -> GenerationRequest:
    """Turn a prompt of any accepted form into a GenerationRequest, or raise RequestError. A text
    and token ids get the params at once, which `with_params` takes longer for."""
    match prompt:
        case GenerationRequest():
            return prompt
        case str():
            return GenerationRequest(prompt=prompt, params=params)
        case Mapping():
            return from_dict(cast("Mapping[str, Any]", prompt))
        case [first, *_] if is_message(first):
            return GenerationRequest(messages=conversations(prompt)[0])
        case _:
            return GenerationRequest(prompt_token_ids=ids_of(prompt), params=params)


def from_dict(prompt: Mapping[str, Any]) -> GenerationRequest:
    """A prompt as a dict, as vLLM takes it: a text beside token ids is what they were made from."""
    if unknown := [key for key in prompt if key not in KEYS]:
        raise no_prompt(prompt, f"{unknown[0]!r} is not supported")
    given = dict(prompt)
    if not isinstance(given.get("prompt", ""), str):
        raise no_prompt(prompt, "its prompt is not a text")
    if "prompt_token_ids" in given:
        given["prompt_token_ids"] = ids_of(given["prompt_token_ids"])
        given["text"] = given.pop("prompt", None)
    if "messages" in given:
        given["messages"] = only_conversation(given["messages"])
    if (data := given.pop("multi_modal_data", None)) is not None:
        given["images"] = images_in(data)
    return GenerationRequest(**given)


def images_in(data: Any) -> list[Any]:
    """The images of vLLM's `multi_modal_data`: one, or a list of them."""
    if not isinstance(data, Mapping) or set(cast("Mapping[str, Any]", data)) - {"image"}:
        raise RequestError(f"multi_modal_data is {data!r:.80}; only its key 'image' is supported")
    found: Any = cast("Mapping[str, Any]", data).get("image", [])
    return list(cast("Sequence[Any]", found)) if isinstance(found, list | tuple) else [found]


def ids_of(prompt: Any) -> list[int]:
    """Token ids in any iterable, as plain numbers."""
    if isinstance(prompt, str | bytes | Mapping) or not isinstance(prompt, Iterable):
        raise no_prompt(prompt)
    ids = list(cast("Iterable[Any]", prompt))
    if set(map(type, ids)) <= {int}:
        return ids
    if not all(isinstance(one, Integral) for one in ids) or bool in map(type, ids):
        raise no_prompt(prompt)
    return [int(one) for one in ids]


def no_prompt(given: Any, why: str = FORMS) -> RequestError:
    return RequestError(f"{given!r:.80} is no prompt; {why}")


def is_message(given: Any) -> bool:
    return isinstance(given, Mapping) and "role" in given


def conversations(messages: Any) -> list[Sequence[Message]]:
    """Turn one conversation, or several, into a list of them."""
    given: list[Any] = [messages] if isinstance(messages, str | Mapping) else list(messages)
    is_one = isinstance(messages, list | tuple) and given and isinstance(given[0], Mapping)
    found: list[Any] = [given] if is_one else given
    for one in found:
        if isinstance(one, str | Mapping) or not all(isinstance(each, Mapping) for each in one):
            raise RequestError(f"{one!r:.80} is no conversation; give a list of messages")
    return found


def only_conversation(messages: Any) -> Sequence[Message]:
    """A single conversation. RequestError for several of them."""
    found = conversations(messages)
    if not found:
        raise RequestError("the conversation is empty; give at least one message")
    if len(found) > 1:
        raise RequestError(f"{len(found)} conversations are given; call chat once for each")
    return found[0]


def with_params(
    generations: list[GenerationRequest],
    params: Params | None,
    given: Mapping[str, Any] = NOTHING_GIVEN,
    rules: SamplingRules = NO_RULES,
) -> list[GenerationRequest]:
    """Give each request its own sampling params, or all of them the same. Fields that are given by
    name replace those of the params, or the defaults of the model if there are no params."""
    own = sampling_of(given)
    found = generations
    if params is not None:
        pairs = zip(generations, one_for_each(params, len(generations)), strict=True)
        found = [
            generation if generation.params is one else replace(generation, params=one)
            for generation, one in pairs
        ]
    if not own:
        return found

    def changed(params: SamplingParams) -> SamplingParams:
        return rules.params(**own) if params is MODEL_DEFAULTS else replace(params, **own)

    return [replace(one, params=changed(one.params)) for one in found]


def with_priorities(
    generations: list[GenerationRequest], given: Sequence[int] | None
) -> list[GenerationRequest]:
    """Give each request its own priority."""
    if given is None:
        return generations
    if isinstance(given, int) or len(given) != len(generations):
        raise RequestError(f"priority is {given!r:.80}; give a list with one for each prompt")
    pairs = zip(generations, given, strict=True)
    return [replace(one, priority=priority) for one, priority in pairs]


def one_for_each(params: Params, prompts: int) -> Sequence[SamplingParams]:
    if isinstance(params, SamplingParams):
        return [params] * prompts
    given: Any = params
    is_list = isinstance(given, Sequence) and not isinstance(given, str)
    if not is_list or not all(
        isinstance(one, SamplingParams) for one in cast("Sequence[Any]", given)
    ):
        raise RequestError(
            f"sampling_params is {params!r:.80}; give SamplingParams, or a list of them"
        )
    if len(params) != prompts:
        raise RequestError(
            f"there are {prompts} prompts and {len(params)} sampling_params; "
            "give one for all prompts, or one for each"
        )
    return params


def is_short(generation: GenerationRequest) -> bool:
    """Whether the text of a prompt is quickly rendered: few messages, of texts, without tools."""
    messages = generation.messages or ()
    texts = [message.get("content") for message in messages[:MANY_MESSAGES]]
    return len(messages) <= MANY_MESSAGES and not (
        generation.tools
        or generation.variables
        or any(text is not None and not isinstance(text, str) for text in texts)
    )
