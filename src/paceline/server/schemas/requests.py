"""Bodies of requests. Fields that are not listed here are ignored."""

from typing import Annotated, Any, Literal, cast

from pydantic import ConfigDict, Field, ValidatorFunctionWrapHandler, WrapValidator
from pydantic_core import PydanticCustomError

from paceline.core.sampling import LARGEST_ID
from paceline.server.schemas.constraints import (
    ChosenLogprobs,
    Constraints,
    Documents,
    MediaArguments,
    NoEcho,
    NoEffort,
    NoMessages,
    NoTokenIds,
    NoToolCalls,
    NoTransfer,
    OwnTemplate,
    PromptText,
    Reasoning,
    RequestBody,
    StoredPrompt,
    ThinkingBudget,
)


def checked_prompt(given: Any, _validate: ValidatorFunctionWrapHandler) -> Any:
    """Check a prompt of any form: pydantic would try each form on all items of a long list."""
    items = cast("list[Any]", given) if isinstance(given, list) else []
    kinds = set(map(type, items))
    problem = ""
    if kinds == {int}:
        problem = wrong_ids(items)
    elif kinds == {list}:
        problem = next((wrong for ids in items if (wrong := wrong_ids(ids))), "")
    elif kinds != {str} and given != [] and not isinstance(given, str):
        problem = NO_PROMPT
    if problem:
        raise PydanticCustomError("prompt", "{problem}", {"problem": problem})
    return cast("Any", given)


def wrong_ids(ids: list[Any]) -> str:
    """What is wrong with token ids; empty: nothing."""
    for begin in range(0, len(ids), SLICE):
        part = ids[begin : begin + SLICE]
        if set(map(type, part)) != {int}:
            return NO_PROMPT
        if min(part) < 0:
            return "token ids cannot be negative"
        if max(part) > LARGEST_ID:
            return f"token ids are at most {LARGEST_ID}"
    return ""


NO_PROMPT = "it must be a text, a list of token ids, or a list of several of either"
SLICE = 2**16  # token ids that are checked at once, before other threads have a turn
MOST_IDS = 2**16  # token ids of a list other than a prompt
MOST_BIASES = 4096
MOST_STOPS = 1024
MOST_MESSAGES = 8192

RequestId = Annotated[str, Field(pattern=r"^[!-~]{1,200}$")]
TokenId = Annotated[int, Field(ge=0, le=LARGEST_ID)]
IdList = Annotated[list[int], Field(max_length=MOST_IDS, fail_fast=True)]
Messages = Annotated[list[dict[str, Any]], Field(max_length=MOST_MESSAGES, fail_fast=True)]
Objects = Annotated[list[dict[str, Any]], Field(fail_fast=True)]
Most = Annotated[int, Field(ge=1, le=LARGEST_ID)]
Prompt = Annotated[
    str | list[str] | list[TokenId] | list[list[TokenId]], WrapValidator(checked_prompt)
]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Budget = Annotated[int, Field(ge=0, le=LARGEST_ID)]


class StreamOptions(RequestBody):
    """What a stream contains besides the text."""

    include_usage: bool | None = Field(None, description="end with a chunk that has the usage")
    continuous_usage_stats: bool | None = Field(None, description="have it in every chunk")


class ServiceTargets(RequestBody):
    """How soon a request is to have its tokens, in milliseconds."""

    model_config = ConfigDict(extra="forbid")

    ttft_ms: float | None = Field(None, gt=0, description="from arrival to the first token")
    itl_ms: float | None = Field(None, gt=0, description="between two tokens")


class GenerationBody(Constraints):
    """Fields that chats, completions and responses share.

    The fields: model, max_tokens, stream, stream_options, slo, n, best_of, use_beam_search,
    beam_width, length_penalty, early_stopping, temperature, top_p, top_k, min_p, presence_penalty,
    frequency_penalty, repetition_penalty, seed, min_tokens, stop, stop_token_ids, ignore_eos,
    logit_bias, allowed_token_ids, bad_token_ids, bad_words, include_stop_str_in_output,
    skip_special_tokens, user, priority, cache_salt, deadline, timeout, timings,
    truncate_prompt_tokens, truncation_side, request_id, session_id, prompt_cache_key,
    spaces_between_special_tokens.
    None has the meaning of OpenAI's default.
    """

    model: str | None = Field(None, description="a name from /v1/models")
    max_tokens: int | None = Field(None, description="most tokens to generate")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    slo: ServiceTargets | None = Field(None, description="targets of this request")
    n: int | None = Field(None, description="choices to return")
    best_of: int | None = Field(None, description="choices to sample, of which n are returned")
    use_beam_search: bool | None = None
    beam_width: int | None = None
    length_penalty: float | None = None
    early_stopping: bool | Literal["never"] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    min_tokens: int | None = None
    stop: str | Annotated[list[str], Field(max_length=MOST_STOPS, fail_fast=True)] | None = None
    stop_token_ids: IdList | None = None
    ignore_eos: bool | None = None
    logit_bias: dict[str, float] | None = Field(
        None, max_length=MOST_BIASES, description="by token id, -100 to 100"
    )
    allowed_token_ids: IdList | None = Field(None, description="generate only these")
    bad_token_ids: IdList | None = Field(None, description="never generate these")
    bad_words: Annotated[list[str], Field(max_length=MOST_STOPS, fail_fast=True)] | None = Field(
        None, description="never generate these texts"
    )
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    user: str | None = Field(None, description="the account that is charged")
    priority: int | None = Field(None, description="smaller goes first")
    cache_salt: str | None = Field(None, description="share cached prefixes with this salt only")
    deadline: float | None = Field(None, description="seconds to the first token, for policies")
    timeout: float | None = Field(None, description="seconds after which the request ends")
    timings: bool | None = Field(None, description="return the time in each stage")
    truncate_prompt_tokens: int | None = Field(
        None, description="keep so many tokens of the prompt; -1: as many as fit"
    )
    truncation_side: Literal["left", "right"] | None = Field(
        None, description="left, the default, keeps the last tokens; right keeps the first"
    )
    request_id: RequestId | None = Field(
        None, description="the id of the response, unless X-Request-Id has one"
    )
    session_id: str | None = Field(
        None, max_length=256, description="the conversation, unless X-Session-Id names it"
    )
    prompt_cache_key: str | None = Field(None, description="likewise, as clients of OpenAI send it")
    spaces_between_special_tokens: bool | None = Field(
        None, description="false, where special tokens are returned"
    )


class ScoredBody(GenerationBody):
    """Fields that chats and completions share: what is returned besides the text."""

    prompt_logprobs: int | None = Field(
        None, ge=-1, description="alternatives returned with each token of the prompt; -1: all"
    )
    logprob_token_ids: Annotated[IdList, Field(min_length=1)] | None = Field(
        None, description="tokens whose logprobs are returned, instead of the likeliest ones"
    )
    return_token_ids: bool | None = Field(
        None, description="return token_ids, and prompt_token_ids once"
    )
    return_tokens_as_token_ids: bool | None = Field(
        None, description="write the tokens of logprobs as token_id:ID"
    )
    kv_transfer_params: dict[str, Any] | None = Field(
        None, description="which engine reads the KV of the prompt, or has it"
    )


class ChatBody(ScoredBody):
    """Fields that a chat and a batch of chats share.

    Own fields: max_completion_tokens, logprobs, top_logprobs, tools, tool_choice,
    parallel_tool_calls, include_reasoning, reasoning_effort, chat_template_kwargs,
    add_generation_prompt, continue_final_message, echo, chat_template, documents,
    thinking_token_budget.
    """

    max_completion_tokens: Most | None = Field(None, description="the newer name of max_tokens")
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=-1, description="alternatives; -1: all")
    tools: Objects | None = Field(None, description="functions that the model may call")
    tool_choice: str | dict[str, Any] | None = Field(
        None, description="none, auto, required, or one function"
    )
    parallel_tool_calls: bool | None = Field(None, description="allow several calls; the default")
    include_reasoning: bool | None = Field(None, description="return it; the default")
    reasoning_effort: Effort | None = Field(None, description="shown to the chat template")
    chat_template_kwargs: dict[str, Any] | None = None
    chat_template: str | None = Field(
        None, description="used instead of the model's (--trust-request-chat-template)"
    )
    documents: Objects | None = Field(None, description="shown to the chat template")
    thinking_token_budget: Budget | None = Field(None, description="most tokens of reasoning")
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = Field(None, description="continue the last message")
    echo: bool | None = Field(
        None, description="begin the answer with the last message, if it has the same role"
    )


class ChatRequest(ChatBody):
    """A conversation to continue."""

    messages: Messages = Field(description="role and content of each")
    return_prompt_text: bool | None = Field(
        None, description="return the text that the chat template makes as prompt_text"
    )


class BatchChatRequest(ChatBody):
    """Several conversations to continue, each with one choice."""

    messages: Annotated[
        list[Annotated[Messages, Field(min_length=1)]],
        Field(min_length=1, max_length=MOST_MESSAGES, fail_fast=True),
    ] = Field(description="conversations, each a list of messages")
    return_prompt_text: PromptText = None


class CompletionRequest(ScoredBody):
    """A text to continue, or several."""

    prompt: Prompt
    echo: bool | None = Field(None, description="begin the text with the prompt")
    logprobs: int | None = None
    suffix: str | None = Field(None, description="the text that follows, for models that insert")
    include_reasoning: Reasoning = None
    reasoning_effort: NoEffort = None
    continue_final_message: OwnTemplate = None
    chat_template: OwnTemplate = None
    documents: Documents = None
    thinking_token_budget: ThinkingBudget = None
    return_prompt_text: PromptText = None


class ResponseRequest(GenerationBody):
    """A conversation to continue, in the form of OpenAI's responses.

    Own fields: input, instructions, max_output_tokens, metadata, previous_response_id,
    conversation, store, background, tools, tool_choice, parallel_tool_calls, include_reasoning,
    text, reasoning, reasoning_effort, truncation, prompt, echo, continue_final_message,
    logprob_token_ids, return_token_ids, return_tokens_as_token_ids, kv_transfer_params, include,
    top_logprobs, chat_template_kwargs, thinking_token_budget, max_tool_calls,
    enable_response_messages, previous_input_messages, chat_template, documents,
    return_prompt_text, service_tier, prompt_cache_options, prompt_cache_retention,
    safety_identifier. Nothing depends on the last four, which clients of OpenAI send.
    """

    input: str | Messages = Field(description="a text, or messages")
    instructions: str | None = Field(None, description="the system message")
    max_output_tokens: Most | None = Field(None, description="most tokens to generate")
    metadata: dict[str, Any] | None = None
    previous_response_id: str | None = Field(
        None, description="the stored response that precedes the input"
    )
    conversation: str | dict[str, Any] | None = None
    store: bool | None = Field(None, description="keep the response; the default")
    background: bool | None = Field(None, description="answer at once, and generate later")
    tools: Objects | None = Field(None, description="functions that the model may call")
    tool_choice: str | dict[str, Any] | None = Field(
        None, description="none, auto, required, or one function"
    )
    parallel_tool_calls: bool | None = Field(None, description="allow several calls; the default")
    include_reasoning: bool | None = Field(None, description="return it; the default")
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = Field(None, description="effort only")
    reasoning_effort: Effort | None = Field(None, description="the same")
    truncation: Literal["disabled"] | None = None
    prompt: StoredPrompt = None
    echo: NoEcho = None
    chat_template: OwnTemplate = None
    documents: Documents = None
    return_prompt_text: PromptText = None
    continue_final_message: OwnTemplate = None
    logprob_token_ids: ChosenLogprobs = None
    return_token_ids: NoTokenIds = None
    return_tokens_as_token_ids: NoTokenIds = None
    kv_transfer_params: NoTransfer = None
    chat_template_kwargs: dict[str, Any] | None = None
    thinking_token_budget: Budget | None = Field(None, description="most tokens of reasoning")
    max_tool_calls: NoToolCalls = None
    enable_response_messages: NoMessages = None
    previous_input_messages: NoMessages = None
    service_tier: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    include: Annotated[list[str], Field(fail_fast=True)] | None = Field(
        None, description="message.output_text.logprobs"
    )
    top_logprobs: int | None = Field(None, ge=-1, description="alternatives; -1: all")


class InputTokensRequest(RequestBody):
    """A conversation of /v1/responses, whose tokens are counted."""

    model: str | None = None
    input: str | Messages | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    tools: Objects | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    truncation: Literal["disabled"] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class TokenizeRequest(RequestBody):
    """A text or a conversation: exactly one of them."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = Field(
        None, description="by default true for a text, false for a conversation"
    )
    add_generation_prompt: bool = True
    return_token_strs: bool = False
    tools: Objects | None = Field(None, description="shown to the chat template")
    chat_template_kwargs: dict[str, Any] | None = None
    chat_template: str | None = Field(
        None, description="used instead of the model's (--trust-request-chat-template)"
    )
    continue_final_message: bool = False
    documents: Objects | None = Field(None, description="shown to the chat template")
    media_io_kwargs: MediaArguments = None
    mm_processor_kwargs: MediaArguments = None


class DetokenizeRequest(RequestBody):
    """Token ids."""

    model: str | None = None
    tokens: Annotated[list[TokenId], Field(fail_fast=True)]


class LoadAdapterRequest(RequestBody):
    """An adapter to load: its name, its folder, and whether it replaces one of that name."""

    lora_name: str
    lora_path: str
    load_inplace: bool = False


class UnloadAdapterRequest(RequestBody):
    """The name of the adapter to unload."""

    lora_name: str


class UpdateWeightsRequest(RequestBody):
    """Where other weights are, what they are called, and what happens to open requests."""

    path: str = ""
    version: str = ""
    mode: Literal["abort", "wait", "keep"] = "wait"


class AbortRequest(RequestBody):
    """The ids of the requests to abort."""

    request_ids: Annotated[list[str], Field(max_length=MOST_MESSAGES, fail_fast=True)]
