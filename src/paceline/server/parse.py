"""Turns the body of a request into what the engine is asked."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from paceline.core.sampling import LARGEST_ID
from paceline.engine.api import GenerationRequest, SamplingParams
from paceline.engine.params import DEFAULT_TOKENS
from paceline.server.errors import BAD_REQUEST, ApiError
from paceline.server.schemas.requests import ChatRequest, CompletionRequest, GenerationBody

SAME_NAMES = (
    "n",
    "best_of",
    "use_beam_search",
    "beam_width",
    "length_penalty",
    "early_stopping",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "min_tokens",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "allowed_token_ids",
    "bad_token_ids",
    "include_stop_str_in_output",
    "skip_special_tokens",
)


def unsupported(param: str, problem: str) -> ApiError:
    return ApiError(BAD_REQUEST, f"{param}: {problem}", param=param)


def sampling(
    body: GenerationBody,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None = None,
) -> SamplingParams:
    """The fields that were given, under the same names."""
    check_most(body, max_tokens)
    given = {name: getattr(body, name) for name in SAME_NAMES}
    if body.logit_bias is not None:
        given["logit_bias"] = biases(body.logit_bias)
    chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    return SamplingParams(
        max_tokens=max_tokens, logprobs=logprobs, prompt_logprobs=prompt_logprobs, **chosen
    )


def check_most(body: GenerationBody, max_tokens: int | None) -> None:
    """Nothing at all is asked for only where a prompt is echoed."""
    is_text = isinstance(body, CompletionRequest)
    least = 0 if is_text and body.echo else 1
    if max_tokens is not None and not least <= max_tokens <= LARGEST_ID:
        also = ", or is 0 to have a prompt echoed alone" if is_text else ""
        raise unsupported("max_tokens", f"it is {max_tokens}; it lies in 1..{LARGEST_ID}{also}")


def biases(given: dict[str, float]) -> dict[int, float]:
    """JSON has no keys but strings."""
    for key in given:
        if not (key.isascii() and key.isdigit() and len(key) < len(str(2**31)) + 1):
            raise unsupported("logit_bias", f"{key!r} is not a token id")
    return {int(key): value for key, value in given.items()}


def check_common(body: GenerationBody) -> None:
    """What no route can do."""
    if body.response_format is not None and body.response_format.type != "text":
        raise unsupported("response_format", f"{body.response_format.type!r} is not supported")
    if body.modalities not in (None, [], ["text"]):
        raise unsupported("modalities", "there is only text")
    if body.function_call not in (None, "none", "auto"):
        raise unsupported("function_call", "a call of a function cannot be enforced")
    framed = isinstance(body, CompletionRequest)  # a chat template writes its own special tokens
    if body.add_special_tokens not in (None, framed):
        raise unsupported("add_special_tokens", f"only {str(framed).lower()} is supported here")
    if body.stream_options is not None and not body.stream:
        raise unsupported("stream_options", "only a stream has options")


def check_prompt(body: ChatRequest | CompletionRequest) -> None:
    if body.prompt_logprobs is not None and body.stream:
        raise unsupported("prompt_logprobs", "a stream does not tell them")


def common(body: GenerationBody) -> dict[str, Any]:
    """What chats and completions tell the engine alike."""
    return {
        "priority": body.priority or 0,
        "tenant": body.user or "",
        "cache_salt": body.cache_salt or "",
        "deadline": body.deadline,
        "timeout": body.timeout,
    }


def chat_ask(body: ChatRequest) -> GenerationRequest:
    """The number of tokens is limited by the model alone where the client sets no limit."""
    check_common(body)
    check_prompt(body)
    check_messages(body.messages)
    if body.tool_choice not in (None, "none", "auto"):
        raise unsupported("tool_choice", "a call of a tool cannot be enforced")
    newer = body.max_completion_tokens
    most = body.max_tokens if newer is None else newer
    return GenerationRequest(
        messages=body.messages,
        params=sampling(body, most, chat_logprobs(body), body.prompt_logprobs),
        tools=None if body.tool_choice == "none" else body.tools,
        variables=body.chat_template_kwargs,
        add_generation_prompt=body.add_generation_prompt is not False,
        **common(body),
    )


def check_messages(messages: Sequence[Mapping[str, Any]]) -> None:
    """Parts of a message are checked where its text is made; these stand beside its content."""
    for place, message in enumerate(messages):
        for name in ("images", "audio"):
            if message.get(name):
                raise unsupported("messages", f"message {place} has {name!r}; only text is read")


def chat_logprobs(body: ChatRequest) -> int | None:
    if body.top_logprobs is not None and not body.logprobs:
        raise unsupported("top_logprobs", "logprobs must be true for it")
    return (body.top_logprobs or 0) if body.logprobs else None


def completion_asks(body: CompletionRequest) -> list[GenerationRequest]:
    """One for each prompt."""
    check_common(body)
    check_prompt(body)
    if body.suffix:
        raise unsupported("suffix", "text cannot be put in between")
    most = DEFAULT_TOKENS if body.max_tokens is None else body.max_tokens
    params = sampling(body, most, body.logprobs, completion_prompt_logprobs(body))
    rest = common(body)
    if not body.prompt:
        raise unsupported("prompt", "it is empty")
    return [
        GenerationRequest(prompt=prompt, params=params, **rest)
        if isinstance(prompt, str)
        else GenerationRequest(prompt_token_ids=prompt, params=params, **rest)
        for prompt in prompts(body)
    ]


def completion_prompt_logprobs(body: CompletionRequest) -> int | None:
    """What is echoed with logprobs has its own; of two numbers the larger one serves both."""
    asked = [body.prompt_logprobs, body.logprobs if body.echo else None]
    return max((number for number in asked if number is not None), default=None)


def prompts(body: CompletionRequest) -> Sequence[str | Sequence[int]]:
    """All forms of a prompt as the longest one: a list of texts or a list of token ids."""
    match body.prompt:
        case str():
            return [body.prompt]
        case [int(), *_]:
            return [body.prompt]
        case _:
            return cast("list[str] | list[list[int]]", body.prompt)
