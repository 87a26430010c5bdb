"""Bodies of /v1/responses, with the fields of OpenAI's API."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from paceline.engine.api import ChoiceOutput, RequestOutput
from paceline.server.schemas.completions import (
    ChatLogprob,
    PromptTokensDetails,
    RequestTimes,
    StageTimings,
    encode,
)

Status = Literal["queued", "in_progress", "completed", "incomplete", "cancelled", "failed"]


class OutputTokensDetails(Struct, frozen=True):
    """Generated tokens of reasoning, with its markers."""

    reasoning_tokens: int = 0


class ResponseUsage(Struct, frozen=True):
    """Token counts of a response."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: PromptTokensDetails
    output_tokens_details: OutputTokensDetails = OutputTokensDetails()


class OutputText(Struct, frozen=True):
    """A part of a message."""

    text: str
    type: str = "output_text"
    annotations: Sequence[Any] = ()
    logprobs: Sequence[ChatLogprob] = ()


class OutputMessage(Struct, frozen=True):
    """The answer; the only item of an output without reasoning and calls."""

    id: str
    status: Status
    content: Sequence[OutputText]
    type: str = "message"
    role: str = "assistant"


class FunctionCallItem(Struct, frozen=True):
    """A call that the model asks for."""

    id: str
    status: Status
    call_id: str
    name: str
    arguments: str
    type: str = "function_call"


class IncompleteDetails(Struct, frozen=True):
    """Why the text is incomplete."""

    reason: str


class ResponseFault(Struct, frozen=True):
    """Why a response has failed."""

    code: str
    message: str


class ResponseBody(Struct, frozen=True):
    """A response, complete or so far.

    The fields: id, created_at, model, instructions, max_output_tokens, temperature, top_p, user,
    metadata, status, output, usage, incomplete_details, timings, object, error,
    parallel_tool_calls, previous_response_id, store, background, top_logprobs, text, tool_choice,
    tools, truncation, metrics, completed_at, presence_penalty, frequency_penalty, reasoning,
    max_tool_calls, service_tier, safety_identifier, prompt_cache_key, conversation,
    system_fingerprint.
    """

    id: str
    created_at: int
    model: str
    instructions: str | None
    max_output_tokens: int | None
    temperature: float
    top_p: float
    user: str | None
    metadata: dict[str, Any]
    status: Status = "in_progress"
    output: Sequence[Struct] = ()
    usage: ResponseUsage | None = None
    incomplete_details: IncompleteDetails | None = None
    timings: StageTimings | UnsetType = UNSET
    object: str = "response"
    error: ResponseFault | None = None
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    store: bool = False
    background: bool = False
    top_logprobs: int = 0
    text: Mapping[str, Any] = {}
    tool_choice: str | dict[str, Any] = "auto"
    tools: Sequence[Any] = ()
    truncation: str = "disabled"
    metrics: RequestTimes | UnsetType | None = UNSET
    completed_at: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    reasoning: Mapping[str, Any] | None = None
    max_tool_calls: int | None = None
    service_tier: str = "default"
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    conversation: Mapping[str, str] | None = None
    system_fingerprint: str | UnsetType = UNSET


def response_event(kind: str, number: int, **fields: Any) -> bytes:
    """A server-sent event, with its type as event name and in its body."""
    body = encode({"type": kind, "sequence_number": number, **fields})
    return b"event: " + kind.encode() + b"\ndata: " + body + b"\n\n"


def last_event(status: str) -> str:
    """The type of the event that ends a response."""
    match status:
        case "completed" | "failed":
            return f"response.{status}"
        case _:
            return "response.incomplete"


def usage_of(output: RequestOutput, reasoning: int) -> ResponseUsage:
    counted = output.usage
    return ResponseUsage(
        counted.prompt_tokens,
        counted.completion_tokens,
        counted.total_tokens,
        PromptTokensDetails(counted.cached_tokens),
        OutputTokensDetails(reasoning),
    )


def status_of(answer: ChoiceOutput) -> tuple[Status, IncompleteDetails | None]:
    match answer.finish_reason:
        case "stop":
            return "completed", None
        case "length":
            return "incomplete", IncompleteDetails("max_output_tokens")
        case "abort":
            return "cancelled", IncompleteDetails("abort")
        case other:
            return "incomplete", IncompleteDetails(str(other))


def item_status(answer: ChoiceOutput) -> Status:
    """The status of the last item."""
    return "completed" if answer.finish_reason == "stop" else "incomplete"
