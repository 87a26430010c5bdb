"""The bodies of requests; fields that are not listed here are ignored, as OpenAI does."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from paceline.core.sampling import LARGEST_ID

TokenId = Annotated[int, Field(ge=0, le=LARGEST_ID)]
PROMPT_LOGPROBS: Any = Field(
    None, ge=0, description="alternatives told with the logprob of each token of the prompt"
)


class Body(BaseModel):
    """A JSON object; its values are of the types they have, never converted."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class StreamOptions(Body):
    """What a stream tells besides the text."""

    include_usage: bool | None = Field(None, description="end with a chunk that has the usage")
    continuous_usage_stats: bool | None = Field(None, description="have it in every chunk")


class Generation(Body):
    """What chats and completions have in common.

    The fields: model, max_tokens, stream, stream_options, n, best_of, use_beam_search, beam_width,
    length_penalty, early_stopping, temperature, top_p, top_k, min_p, presence_penalty,
    frequency_penalty, repetition_penalty, seed, min_tokens, stop, stop_token_ids, ignore_eos,
    logit_bias, include_stop_str_in_output, skip_special_tokens, user, priority, cache_salt,
    deadline, timeout, timings. None stands for what OpenAI does without them.
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
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    user: str | None = Field(None, description="on whose account it runs")
    priority: int | None = Field(None, description="smaller goes first")
    cache_salt: str | None = Field(None, description="share cached prefixes with this salt only")
    deadline: float | None = Field(None, description="seconds to the first token, to be ranked by")
    timeout: float | None = Field(None, description="seconds to the end, where it is cut")
    timings: bool | None = Field(None, description="tell where the time went")


class ResponseFormat(Body):
    """Text is the only format there is."""

    type: str


class ChatRequest(Generation):
    """A conversation to be continued.

    Own fields: messages, max_completion_tokens, logprobs, top_logprobs, prompt_logprobs, tools,
    tool_choice, response_format, chat_template_kwargs, add_generation_prompt.
    """

    messages: list[dict[str, Any]] = Field(description="role and content of each")
    max_completion_tokens: int | None = Field(None, description="the newer name of max_tokens")
    logprobs: bool | None = None
    top_logprobs: int | None = None
    prompt_logprobs: int | None = PROMPT_LOGPROBS
    tools: list[dict[str, Any]] | None = Field(None, description="shown to the chat template")
    tool_choice: str | dict[str, Any] | None = None
    response_format: ResponseFormat | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None


class CompletionRequest(Generation):
    """A text, or several, to be continued."""

    prompt: str | list[str] | list[TokenId] | list[list[TokenId]]
    echo: bool | None = Field(None, description="begin the text with the prompt")
    logprobs: int | None = None
    prompt_logprobs: int | None = PROMPT_LOGPROBS
    suffix: str | None = None


class ResponseRequest(Generation):
    """A conversation to be continued, in the form of OpenAI's responses."""

    input: str | list[dict[str, Any]] = Field(description="a text, or messages")
    instructions: str | None = Field(None, description="the system's message")
    max_output_tokens: int | None = Field(None, description="the name of max_tokens here")
    metadata: dict[str, Any] | None = None
    previous_response_id: str | None = Field(None, description="refused: nothing is kept")
    conversation: str | dict[str, Any] | None = None
    background: bool | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    include: list[str] | None = None
    top_logprobs: int | None = None


class TokenizeRequest(Body):
    """A text or a conversation; exactly one of them."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    return_token_strs: bool = False
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeRequest(Body):
    """Token ids."""

    model: str | None = None
    tokens: list[TokenId]


class AbortRequest(Body):
    """The requests to end, by the ids that were given back with them."""

    request_ids: list[str]
