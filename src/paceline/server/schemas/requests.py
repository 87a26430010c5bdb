"""Bodies of requests. Fields that are not listed here are ignored."""

from typing import Annotated, Any, Literal, cast

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import PydanticCustomError

from paceline.core.sampling import LARGEST_ID, MOST_LOGPROBS


def refused(reason: str) -> BeforeValidator:
    """A field that is not supported. Null, false and an empty list are accepted."""

    def check(given: Any, info: ValidationInfo) -> None:
        if not (given is None or given is False or given == []):
            problem = f"{reason}; remove {info.field_name}"
            raise PydanticCustomError("unsupported", "{problem}", {"problem": problem})

    return BeforeValidator(check)


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

REFUSED: Any = Field(description="refused")
StructuredOutput = Annotated[None, refused("structured output is not built yet"), REFUSED]
Adapter = Annotated[None, refused("adapters are not supported"), REFUSED]
OtherInput = Annotated[None, refused("only text is supported as input"), REFUSED]
OwnTemplate = Annotated[
    None, refused("the chat template of the model is used, and it begins a new message"), REFUSED
]
Functions = Annotated[None, refused("functions are not supported; see tools"), REFUSED]
BadWords = Annotated[None, refused("words cannot be banned; see bad_token_ids"), REFUSED]
Truncation = Annotated[None, refused("prompts are not truncated; send a shorter one"), REFUSED]
Processors = Annotated[None, refused("logits_processors are not supported"), REFUSED]
Documents = Annotated[
    None, refused("documents are not supported; write their text into messages"), REFUSED
]
Embeddings = Annotated[None, refused("a prompt is a text or token ids"), REFUSED]
TokenId = Annotated[int, Field(ge=0, le=LARGEST_ID)]
IdList = Annotated[list[int], Field(max_length=MOST_IDS, fail_fast=True)]
Messages = Annotated[list[dict[str, Any]], Field(max_length=MOST_MESSAGES, fail_fast=True)]
Objects = Annotated[list[dict[str, Any]], Field(fail_fast=True)]
Most = Annotated[int, Field(ge=1, le=LARGEST_ID)]
Prompt = Annotated[
    str | list[str] | list[TokenId] | list[list[TokenId]], WrapValidator(checked_prompt)
]
PROMPT_LOGPROBS: Any = Field(
    None, ge=0, description="alternatives returned with the logprob of each token of the prompt"
)


class RequestBody(BaseModel):
    """A JSON object. Values are not converted to other types."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class StreamOptions(RequestBody):
    """What a stream contains besides the text."""

    include_usage: bool | None = Field(None, description="end with a chunk that has the usage")
    continuous_usage_stats: bool | None = Field(None, description="have it in every chunk")


class ResponseFormat(RequestBody):
    """Only text is supported."""

    type: str


class Constraints(RequestBody):
    """Fields of other servers that constrain the text or change the prompt.

    A client that sends one relies on it, so most are refused and none is ignored. The fields:
    response_format, modalities, function_call, functions, add_special_tokens, chat_template,
    structured_outputs, guided_json, guided_regex, guided_choice, guided_grammar, regex,
    json_schema, ebnf, bad_words, truncate_prompt_tokens, continue_final_message,
    logits_processors, documents, prompt_embeds; adapters: adapter, lora, lora_path, lora_request;
    inputs that are no text: images, image_data, video_data, audio, audio_data, multi_modal_data.
    """

    response_format: ResponseFormat | None = Field(None, description="text only")
    modalities: Annotated[list[str], Field(fail_fast=True)] | None = Field(
        None, description="text only"
    )
    function_call: str | dict[str, Any] | None = Field(None, description="none or auto")
    functions: Functions = None
    add_special_tokens: bool | None = Field(
        None, description="true for a text and false for a conversation, which are the defaults"
    )
    chat_template: OwnTemplate = None
    structured_outputs: StructuredOutput = None
    guided_json: StructuredOutput = None
    guided_regex: StructuredOutput = None
    guided_choice: StructuredOutput = None
    guided_grammar: StructuredOutput = None
    regex: StructuredOutput = None
    json_schema: StructuredOutput = None
    ebnf: StructuredOutput = None
    bad_words: BadWords = None
    truncate_prompt_tokens: Truncation = None
    continue_final_message: OwnTemplate = None
    logits_processors: Processors = None
    documents: Documents = None
    prompt_embeds: Embeddings = None
    adapter: Adapter = None
    lora: Adapter = None
    lora_path: Adapter = None
    lora_request: Adapter = None
    images: OtherInput = None
    image_data: OtherInput = None
    video_data: OtherInput = None
    audio: OtherInput = None
    audio_data: OtherInput = None
    multi_modal_data: OtherInput = None


class GenerationBody(Constraints):
    """Fields that chats, completions and responses share.

    The fields: model, max_tokens, stream, stream_options, n, best_of, use_beam_search, beam_width,
    length_penalty, early_stopping, temperature, top_p, top_k, min_p, presence_penalty,
    frequency_penalty, repetition_penalty, seed, min_tokens, stop, stop_token_ids, ignore_eos,
    logit_bias, allowed_token_ids, bad_token_ids, include_stop_str_in_output, skip_special_tokens,
    user, priority, cache_salt, deadline, timeout, timings. None has the meaning of OpenAI's
    default.
    """

    model: str | None = Field(None, description="a name from /v1/models")
    max_tokens: int | None = Field(None, description="most tokens to generate")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
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
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    user: str | None = Field(None, description="the account that is charged")
    priority: int | None = Field(None, description="smaller goes first")
    cache_salt: str | None = Field(None, description="share cached prefixes with this salt only")
    deadline: float | None = Field(None, description="seconds to the first token, for policies")
    timeout: float | None = Field(None, description="seconds after which the request ends")
    timings: bool | None = Field(None, description="return the time in each stage")


class ChatRequest(GenerationBody):
    """A conversation to continue.

    Own fields: messages, max_completion_tokens, logprobs, top_logprobs, prompt_logprobs, tools,
    tool_choice, chat_template_kwargs, add_generation_prompt.
    """

    messages: Messages = Field(description="role and content of each")
    max_completion_tokens: Most | None = Field(None, description="the newer name of max_tokens")
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MOST_LOGPROBS)
    prompt_logprobs: int | None = PROMPT_LOGPROBS
    tools: Objects | None = Field(None, description="shown to the chat template")
    tool_choice: str | dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None


class CompletionRequest(GenerationBody):
    """A text to continue, or several."""

    prompt: Prompt
    echo: bool | None = Field(None, description="begin the text with the prompt")
    logprobs: int | None = None
    prompt_logprobs: int | None = PROMPT_LOGPROBS
    suffix: str | None = None


class ResponseRequest(GenerationBody):
    """A conversation to continue, in the form of OpenAI's responses."""

    input: str | Messages = Field(description="a text, or messages")
    instructions: str | None = Field(None, description="the system message")
    max_output_tokens: Most | None = Field(None, description="most tokens to generate")
    metadata: dict[str, Any] | None = None
    previous_response_id: str | None = Field(None, description="refused: responses are not stored")
    conversation: str | dict[str, Any] | None = None
    background: bool | None = None
    tools: Objects | None = None
    tool_choice: str | dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    include: Annotated[list[str], Field(fail_fast=True)] | None = None
    top_logprobs: int | None = None


class TokenizeRequest(RequestBody):
    """A text or a conversation: exactly one of them."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    return_token_strs: bool = False
    tools: Objects | None = Field(None, description="as in a chat")
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeRequest(RequestBody):
    """Token ids."""

    model: str | None = None
    tokens: Annotated[list[TokenId], Field(fail_fast=True)]


class AbortRequest(RequestBody):
    """The ids of the requests to abort."""

    request_ids: Annotated[list[str], Field(max_length=MOST_MESSAGES, fail_fast=True)]
