"""Turns the body of an HTTP request into requests to the engine."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, cast, get_args

from msgspec import json

from paceline.core.constraint import Constraint
from paceline.core.errors import RequestError
from paceline.core.sampling import LARGEST_ID, ServiceLevel, alternatives, listed
from paceline.engine.api import GenerationRequest, SamplingParams
from paceline.engine.params import DEFAULT_TOKENS, MOST_SEQUENCES
from paceline.engine.sampling_rules import SamplingRules
from paceline.server.errors import BAD_REQUEST, ApiError
from paceline.server.replies.reply_parsing import PLAIN_REPLY, ReplyFormats, ReplyParsing
from paceline.server.schemas.requests import (
    BatchChatRequest,
    ChatBody,
    ChatRequest,
    CompletionRequest,
    Effort,
    GenerationBody,
    ResponseRequest,
    ScoredBody,
)
from paceline.structured.request_fields import GUIDED, constraint_of
from paceline.text.tokenizer import InfillMarkers

# Fields that a body and `SamplingParams` share, but that are read apart, or that a body has to
# refuse them.
READ_APART = (
    *("max_tokens", "logit_bias", "structured_outputs", "truncate_prompt_tokens"),
    *("spaces_between_special_tokens", "detokenize", "logits_processors", "slo"),
)
SHARED = [
    one.name
    for one in fields(SamplingParams)
    if one.name in GenerationBody.model_fields and one.name not in READ_APART
]

Conversation = Sequence[Mapping[str, Any]]
CONSTRAINTS = ("response_format", "structured_outputs", *GUIDED)
NO_SUMMARY = ("summary", "auto")  # as much as the model makes of its reasoning, which is none


def unsupported(param: str, problem: str) -> ApiError:
    return ApiError(BAD_REQUEST, f"{param}: {problem}", param=param)


def check_text(param: str, given: object) -> None:
    """400 for texts that cannot be stored and sent."""
    try:
        json.encode(given)
    except UnicodeEncodeError:
        problem = f"{param} has an unpaired surrogate, which no encoding of Unicode has"
        raise ApiError(BAD_REQUEST, problem, param=param) from None


def sampling(
    body: GenerationBody,
    rules: SamplingRules,
    max_tokens: int | None,
    logprobs: int | None = None,
    prompt_logprobs: int | None = None,
    formats: Mapping[str, Any] | None = None,
) -> SamplingParams:
    """Sampling parameters from the fields that the body has, and defaults of the model. `formats`
    say what the output must follow; None: the body does."""
    check_most(body, max_tokens)
    given = {name: getattr(body, name) for name in SHARED}
    if body.logit_bias is not None:
        given["logit_bias"] = biases(body.logit_bias)
    given["structured_outputs"] = constraint(constraining(body) if formats is None else formats)
    if body.slo is not None:
        given["slo"] = ServiceLevel(body.slo.ttft_ms, body.slo.itl_ms)
    if isinstance(body, ScoredBody):
        given["logprob_token_ids"] = named_tokens(body, logprobs)
    chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    return rules.params(
        max_tokens=max_tokens, logprobs=logprobs, prompt_logprobs=prompt_logprobs, **chosen
    )


def named_tokens(body: ScoredBody, logprobs: int | None) -> Sequence[int] | None:
    """Tokens whose log-probabilities are wanted."""
    if body.logprob_token_ids and logprobs is None:
        raise unsupported(
            "logprob_token_ids", "it needs logprobs; set logprobs, or remove logprob_token_ids"
        )
    return body.logprob_token_ids


def constraining(body: GenerationBody) -> dict[str, Any]:
    """The fields that say what the output must follow."""
    found = {name: getattr(body, name) for name in CONSTRAINTS}
    return {**found, "text": body.text} if isinstance(body, ResponseRequest) else found


def constraint(asked: Mapping[str, Any]) -> Constraint | None:
    """What the output must follow."""
    given = {name: value for name, value in asked.items() if value is not None}
    try:
        return constraint_of(given)
    except RequestError as error:
        raise unsupported(next(iter(given)), str(error)) from None


def check_most(body: GenerationBody, max_tokens: int | None) -> None:
    """`max_tokens` may be 0 only if the prompt is echoed."""
    is_text = isinstance(body, CompletionRequest)
    least = 0 if is_text and body.echo else 1
    if max_tokens is not None and not least <= max_tokens <= LARGEST_ID:
        also = ", or 0 with echo" if is_text else ""
        raise unsupported("max_tokens", f"it is {max_tokens}; it must lie in 1..{LARGEST_ID}{also}")


def biases(given: dict[str, float]) -> dict[int, float]:
    """The keys as numbers: JSON has only strings as keys."""
    wrong = [key for key in given if not is_number(key)]
    if wrong:
        noun = "is not a token id" if len(wrong) == 1 else "are not token ids"
        raise unsupported("logit_bias", f"{listed([repr(key) for key in wrong])} {noun}")
    return {int(key): value for key, value in given.items()}


def is_number(key: str) -> bool:
    return key.isascii() and key.isdigit() and len(key) < len(str(2**31)) + 1


def check_common(body: GenerationBody) -> None:
    """Refuse what no route supports."""
    if body.modalities not in (None, [], ["text"]):
        raise unsupported("modalities", "only text is supported; remove modalities")
    if body.function_call not in (None, "none", "auto"):
        raise unsupported("function_call", "function calls cannot be enforced; use none or auto")
    if body.spaces_between_special_tokens and body.skip_special_tokens is False:
        raise unsupported(
            "spaces_between_special_tokens",
            "special tokens are returned as they are, without spaces; set it to false",
        )
    if body.stream_options is not None and not body.stream:
        raise unsupported(
            "stream_options", "stream is false; set stream to true, or remove stream_options"
        )


def check_prompt(body: ScoredBody) -> None:
    if body.prompt_logprobs is not None and body.stream:
        raise unsupported(
            "prompt_logprobs", "a stream does not return them; set stream to false, or remove it"
        )


def transfer(body: ScoredBody, prompts: int) -> dict[str, Any]:
    """The field of the engine's request that says where the KV of its one prompt comes from."""
    given = body.kv_transfer_params or None
    if given is not None and prompts > 1:
        problem = f"there are {prompts} prompts; send each in a request of its own"
        raise unsupported("kv_transfer_params", problem)
    return {"kv_transfer_params": given}


def common(body: GenerationBody) -> dict[str, Any]:
    """Fields of the engine's request that all routes share."""
    return {
        "priority": body.priority or 0,
        "tenant": body.user or "",
        "cache_salt": body.cache_salt or "",
        "adapter": body.model or "",
        "deadline": body.deadline,
        "timeout": body.timeout,
        "truncate_prompt_tokens": body.truncate_prompt_tokens,
        "truncation_side": body.truncation_side or "left",
        "add_special_tokens": body.add_special_tokens,
    }


def asked_reply(body: ChatBody | ResponseRequest, formats: ReplyFormats) -> ReplyParsing:
    """How the reply is parsed."""
    with_reasoning = body.include_reasoning is not False
    found = formats.asked(body.tools, body.tool_choice, body.parallel_tool_calls, with_reasoning)
    return found.limited(body.thinking_token_budget)


def chat_ask(
    body: ChatRequest,
    rules: SamplingRules,
    reply: ReplyParsing = PLAIN_REPLY,
    formats: Mapping[str, Any] | None = None,
) -> GenerationRequest:
    """Without `max_tokens`, only `max_model_len` limits the answer. `reply` has the tools."""
    (generation,) = chat_asks(body, [body.messages], rules, reply, formats)
    return generation


def chat_asks(
    body: ChatBody,
    conversations: Sequence[Conversation],
    rules: SamplingRules,
    reply: ReplyParsing,
    formats: Mapping[str, Any] | None = None,
) -> list[GenerationRequest]:
    """The same for each of several conversations."""
    check_common(body)
    check_prompt(body)
    if isinstance(body, ChatRequest) and body.return_prompt_text and body.stream:
        raise unsupported(
            "return_prompt_text", "a stream does not return it; set stream to false, or remove it"
        )
    for messages in conversations:
        check_messages(messages)
    newer = body.max_completion_tokens
    most = body.max_tokens if newer is None else newer
    scores = chat_logprobs(body, rules)
    params = sampling(body, rules, most, scores, body.prompt_logprobs, formats)
    shared: dict[str, Any] = {
        "params": reply.decoded(params),
        "tools": reply.shown(),
        "variables": with_documents(
            template_variables(body.chat_template_kwargs, body.reasoning_effort), body.documents
        ),
        "chat_template": body.chat_template or None,
        "add_generation_prompt": begins_message(body),
        "continue_final_message": bool(body.continue_final_message),
        **common(body),
        **transfer(body, len(conversations)),
    }
    return [GenerationRequest(messages=messages, **shared) for messages in conversations]


def begins_message(body: ChatBody) -> bool:
    """Whether the answer is a new message; it is, unless it continues the last one."""
    begins = body.add_generation_prompt
    return not body.continue_final_message if begins is None else begins


def check_batch(body: BatchChatRequest, most: int) -> None:
    """Refuse what a batch of chats does not support, and too many conversations."""
    if len(body.messages) > most:
        problem = f"there are {len(body.messages)} conversations; at most {most} (max_prompts)"
        raise unsupported("messages", problem)
    if body.stream:
        raise unsupported("stream", "a batch is not streamed; remove stream")
    if max(body.n or 1, body.best_of or 1) > 1:
        raise unsupported("n", "each conversation of a batch has one choice; remove n")
    if body.use_beam_search or body.beam_width:
        raise unsupported("use_beam_search", "a batch has no beam search; remove use_beam_search")
    if body.tools and body.tool_choice != "none":
        raise unsupported("tools", "a batch has no tools; remove tools")


def template_variables(
    given: Mapping[str, Any] | None, effort: str | None
) -> Mapping[str, Any] | None:
    """An effort also says whether the model reasons at all, for templates that ask only that."""
    if effort is None:
        return given
    return {"enable_thinking": effort != "none", **(given or {}), "reasoning_effort": effort}


def with_documents(
    variables: Mapping[str, Any] | None, documents: Sequence[Mapping[str, Any]] | None
) -> Mapping[str, Any] | None:
    """The variables of the chat template, with the documents that a request brings."""
    return {**(variables or {}), "documents": documents} if documents else variables


def check_template(template: str | None, trusted: bool) -> None:
    """400 if a request brings a chat template and may not."""
    if template and not trusted:
        raise unsupported(
            "chat_template",
            "clients may not bring one (--trust-request-chat-template); remove chat_template",
        )


def effort_of(param: str, given: Mapping[str, Any] | None) -> str | None:
    """The effort of a field that has nothing else, but for a summary that may be missing."""
    for name, value in (given or {}).items():
        if value is not None and name != "effort" and (name, value) != NO_SUMMARY:
            raise unsupported(param, f"{name} is not supported; remove {name}")
    found = (given or {}).get("effort")
    if found is not None and found not in get_args(Effort):
        choices = ", ".join(get_args(Effort))
        raise unsupported(param, f"the effort is {found!r}; choose one of {choices}")
    return found


def check_messages(messages: Sequence[Mapping[str, Any]]) -> None:
    """Refuse images and audio beside the content. The chat template checks the content."""
    for place, message in enumerate(messages):
        for name in ("images", "audio"):
            if message.get(name):
                raise unsupported(
                    "messages", f"message {place} has {name!r}; only text is supported"
                )


def chat_logprobs(body: ChatBody, rules: SamplingRules) -> int | None:
    if body.top_logprobs is not None and not body.logprobs:
        raise unsupported(
            "top_logprobs", "it needs logprobs; set logprobs to true, or remove top_logprobs"
        )
    rules.check_logprobs("top_logprobs", body.top_logprobs)
    return (body.top_logprobs or 0) if body.logprobs else None


def completion_asks(
    body: CompletionRequest, rules: SamplingRules, markers: InfillMarkers | None = None
) -> list[GenerationRequest]:
    """One request for each prompt. The model inserts text before a suffix at its `markers`."""
    check_common(body)
    check_prompt(body)
    given = infilled(body, markers) if body.suffix else prompts(body)
    most = DEFAULT_TOKENS if body.max_tokens is None else body.max_tokens
    params = sampling(body, rules, most, body.logprobs, completion_prompt_logprobs(body))
    rest = common(body) | transfer(body, len(prompts(body)))
    if not body.prompt:
        raise unsupported("prompt", "it is empty; give at least one token")
    return [
        GenerationRequest(prompt=prompt, params=params, **rest)
        if isinstance(prompt, str)
        else GenerationRequest(prompt_token_ids=prompt, params=params, **rest)
        for prompt in given
    ]


def infilled(body: CompletionRequest, markers: InfillMarkers | None) -> Sequence[str]:
    """The prompts with the text that follows the answer."""
    if markers is None:
        raise unsupported("suffix", "this model has no tokens for insertion; remove suffix")
    texts = [one for one in prompts(body) if isinstance(one, str)]
    if body.echo or len(texts) < len(prompts(body)):
        raise unsupported("suffix", "it needs prompts that are texts, without echo; remove suffix")
    return [markers.prompt(text, body.suffix or "") for text in texts]


def check_prompts(body: CompletionRequest, most: int) -> None:
    """Bound the work of a request: its prompts, and the sequences of all of them."""
    asked, each = len(prompts(body)), max(body.n or 1, body.best_of or 1, body.beam_width or 1)
    if asked > most:
        raise unsupported("prompt", f"it has {asked} prompts; at most {most} (max_prompts)")
    if asked > 1 and asked * each > MOST_SEQUENCES:
        raise unsupported(
            "n",
            f"{asked} prompts with {each} sequences each are more than {MOST_SEQUENCES}; "
            "send several requests",
        )


def completion_prompt_logprobs(body: CompletionRequest) -> int | None:
    """An echoed prompt has logprobs too. The larger of both numbers is computed."""
    asked = [body.prompt_logprobs, body.logprobs if body.echo else None]
    return max((alternatives(number) for number in asked if number is not None), default=None)


def prompts(body: CompletionRequest) -> Sequence[str | Sequence[int]]:
    return each_prompt(body.prompt)


def each_prompt(given: Any) -> Sequence[str | Sequence[int]]:
    """The prompts as a list of texts, or as a list of lists of token ids."""
    match given:
        case str():
            return [given]
        case [int(), *_]:
            return [cast("list[int]", given)]
        case _:
            return cast("list[str] | list[list[int]]", given)
