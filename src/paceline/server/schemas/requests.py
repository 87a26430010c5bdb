"""The bodies of requests; fields that are not listed here are ignored."""

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import PydanticCustomError

from paceline.core.sampling import LARGEST_ID, MOST_LOGPROBS


def nothing(given: Any) -> None:
    """Null, false and an empty list ask for nothing, so nothing is promised with them."""
    if not (given is None or given is False or given == []):
        raise PydanticCustomError("unsupported", "it is not supported")


def one_reason(given: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    """A prompt that has none of its forms is refused for one reason, not for one by form."""
    try:
        return validate(given)
    except ValidationError as error:
        kinds = {one["type"] for one in error.errors(include_url=False, include_input=False)}
    problem = "it is a text, a list of token ids, or a list of several of either"
    if "greater_than_equal" in kinds:
        problem = "token ids cannot be negative"
    elif "less_than_equal" in kinds:
        problem = f"token ids are at most {LARGEST_ID}"
    raise PydanticCustomError("prompt", "{problem}", {"problem": problem})


Unsupported = Annotated[None, BeforeValidator(nothing), Field(description="refused")]
TokenId = Annotated[int, Field(ge=0, le=LARGEST_ID)]
Most = Annotated[int, Field(ge=1, le=LARGEST_ID)]
Prompt = Annotated[str | list[str] | list[TokenId] | list[list[TokenId]], WrapValidator(one_reason)]
PROMPT_LOGPROBS: Any = Field(
    None, ge=0, description="alternatives told with the logprob of each token of the prompt"
)


class RequestBody(BaseModel):
    """A JSON object; its values are of the types they have, never converted."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class StreamOptions(RequestBody):
    """What a stream tells besides the text."""

    include_usage: bool | None = Field(None, description="end with a chunk that has the usage")
    continuous_usage_stats: bool | None = Field(None, description="have it in every chunk")


class ResponseFormat(RequestBody):
    """Text is the only format there is."""

    type: str


class Constraints(RequestBody):
    """What others let a request say about its text or its prompt, and what is not done here.

    A client that sends one relies on it. So it is told, and not left with a text that breaks it.
    The fields: response_format, modalities, function_call, functions, add_special_tokens,
    chat_template, structured_outputs, guided_json, guided_regex, guided_choice, guided_grammar,
    regex, json_schema, ebnf, bad_words, truncate_prompt_tokens, continue_final_message,
    logits_processors, documents, prompt_embeds; adapters: adapter, lora, lora_path, lora_request;
    inputs that are no text: images, image_data, video_data, audio, audio_data, multi_modal_data.
    """

    response_format: ResponseFormat | None = Field(None, description="text, and nothing else")
    modalities: list[str] | None = Field(None, description="text, and nothing else")
    function_call: str | dict[str, Any] | None = Field(None, description="none or auto")
    functions: Unsupported = None
    add_special_tokens: bool | None = Field(
        None, description="true for a text, false for a conversation, as it is without"
    )
    chat_template: Unsupported = None
    structured_outputs: Unsupported = None
    guided_json: Unsupported = None
    guided_regex: Unsupported = None
    guided_choice: Unsupported = None
    guided_grammar: Unsupported = None
    regex: Unsupported = None
    json_schema: Unsupported = None
    ebnf: Unsupported = None
    bad_words: Unsupported = None
    truncate_prompt_tokens: Unsupported = None
    continue_final_message: Unsupported = None
    logits_processors: Unsupported = None
    documents: Unsupported = None
    prompt_embeds: Unsupported = None
    adapter: Unsupported = None
    lora: Unsupported = None
    lora_path: Unsupported = None
    lora_request: Unsupported = None
    images: Unsupported = None
    image_data: Unsupported = None
    video_data: Unsupported = None
    audio: Unsupported = None
    audio_data: Unsupported = None
    multi_modal_data: Unsupported = None


class GenerationBody(Constraints):
    """What chats and completions have in common.

    The fields: model, max_tokens, stream, stream_options, n, best_of, use_beam_search, beam_width,
    length_penalty, early_stopping, temperature, top_p, top_k, min_p, presence_penalty,
    frequency_penalty, repetition_penalty, seed, min_tokens, stop, stop_token_ids, ignore_eos,
    logit_bias, allowed_token_ids, bad_token_ids, include_stop_str_in_output, skip_special_tokens,
    user, priority, cache_salt, deadline, timeout, timings. None stands for what OpenAI does without
    them.
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
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    logit_bias: dict[str, float] | None = Field(None, description="by token id, -100 to 100")
    allowed_token_ids: list[int] | None = Field(None, description="only these are generated")
    bad_token_ids: list[int] | None = Field(None, description="these never are")
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    user: str | None = Field(None, description="on whose account it runs")
    priority: int | None = Field(None, description="smaller goes first")
    cache_salt: str | None = Field(None, description="share cached prefixes with this salt only")
    deadline: float | None = Field(None, description="seconds to the first token, to be ranked by")
    timeout: float | None = Field(None, description="seconds to the end, where it is cut")
    timings: bool | None = Field(None, description="tell where the time went")


class ChatRequest(GenerationBody):
    """A conversation to be continued.

    Own fields: messages, max_completion_tokens, logprobs, top_logprobs, prompt_logprobs, tools,
    tool_choice, chat_template_kwargs, add_generation_prompt.
    """

    messages: list[dict[str, Any]] = Field(description="role and content of each")
    max_completion_tokens: Most | None = Field(None, description="the newer name of max_tokens")
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MOST_LOGPROBS)
    prompt_logprobs: int | None = PROMPT_LOGPROBS
    tools: list[dict[str, Any]] | None = Field(None, description="shown to the chat template")
    tool_choice: str | dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None


class CompletionRequest(GenerationBody):
    """A text, or several, to be continued."""

    prompt: Prompt
    echo: bool | None = Field(None, description="begin the text with the prompt")
    logprobs: int | None = None
    prompt_logprobs: int | None = PROMPT_LOGPROBS
    suffix: str | None = None


class ResponseRequest(GenerationBody):
    """A conversation to be continued, in the form of OpenAI's responses."""

    input: str | list[dict[str, Any]] = Field(description="a text, or messages")
    instructions: str | None = Field(None, description="the system's message")
    max_output_tokens: Most | None = Field(None, description="the name of max_tokens here")
    metadata: dict[str, Any] | None = None
    previous_response_id: str | None = Field(None, description="refused: nothing is kept")
    conversation: str | dict[str, Any] | None = None
    background: bool | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    include: list[str] | None = None
    top_logprobs: int | None = None


class TokenizeRequest(RequestBody):
    """A text or a conversation; exactly one of them."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    return_token_strs: bool = False
    tools: list[dict[str, Any]] | None = Field(None, description="as a chat has them")
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeRequest(RequestBody):
    """Token ids."""

    model: str | None = None
    tokens: list[TokenId]


class AbortRequest(RequestBody):
    """The requests to end, by the ids that were given back with them."""

    request_ids: list[str]
