"""Bodies of /v1/messages, with the fields of Anthropic's API."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from msgspec import UNSET, Struct
from pydantic import Field

from paceline.server.schemas.completions import KVTransferParams, encode
from paceline.server.schemas.constraints import (
    REFUSED,
    EncoderTransfer,
    MediaReturned,
    OwnArguments,
    Payload,
    RequestBody,
    Watermark,
    refused,
)
from paceline.server.schemas.requests import MOST_STOPS, Messages, Most, Objects

NoServers = Annotated[None, refused("MCP servers are not called"), REFUSED]
Unedited = Annotated[None, refused("a conversation is not edited"), REFUSED]
StopReason = Literal[
    "end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"
]


class MessagesPrompt(RequestBody):
    """A conversation, with its system message beside it."""

    model: str | None = Field(None, description="a name from /v1/models")
    messages: Messages = Field(description="role, user or assistant, and content of each")
    system: str | Objects | None = Field(None, description="a text, or blocks of text")
    tools: Objects | None = Field(None, description="tools that the model may call")
    tool_choice: dict[str, Any] | None = Field(None, description="auto, any, tool or none")
    thinking: dict[str, Any] | None = Field(
        None, description="enabled, with budget_tokens if they are limited, adaptive or disabled"
    )
    mcp_servers: NoServers = None
    output_config: dict[str, Any] | None = Field(
        None, description="format, with type json_schema and a schema; effort"
    )
    context_management: Unedited = None
    output_format: dict[str, Any] | None = Field(None, description="the older place of format")
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="further variables of the chat template"
    )


class MessagesRequest(MessagesPrompt):
    """A conversation to continue.

    Own fields: max_tokens, stop_sequences, stream, temperature, top_p, top_k, metadata, cache_salt,
    kv_transfer_params, vllm_xargs, watermarking, ec_transfer_params, mm_payload, return_mm_kwargs.
    """

    max_tokens: Most = Field(description="most tokens to generate")
    stop_sequences: Annotated[list[str], Field(max_length=MOST_STOPS, fail_fast=True)] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    metadata: dict[str, Any] | None = Field(None, description="user_id is the charged account")
    cache_salt: str | None = Field(None, description="share cached prefixes with this salt only")
    kv_transfer_params: dict[str, Any] | None = Field(
        None, description="which engine reads the KV of the prompt, or has it"
    )
    vllm_xargs: OwnArguments = None
    watermarking: Watermark = None
    ec_transfer_params: EncoderTransfer = None
    mm_payload: Payload = None
    return_mm_kwargs: MediaReturned = None


class MessagesUsage(Struct, frozen=True):
    """Token counts; `input_tokens` leaves out those that the prefix cache had or has now.

    The fields that are null are of other services; clients expect them to be there.
    """

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    cache_creation: None = None
    inference_geo: None = None
    output_tokens_details: None = None
    server_tool_use: None = None
    service_tier: None = None


class TextBlock(Struct, frozen=True):
    """The answer."""

    text: str
    type: str = "text"
    citations: None = None


class MessageBody(Struct, frozen=True):
    """A message, complete or before it has any content."""

    id: str
    model: str
    usage: MessagesUsage
    content: Sequence[Struct] = ()
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    kv_transfer_params: KVTransferParams = UNSET
    type: str = "message"
    role: str = "assistant"
    stop_details: None = None
    container: None = None


def message_event(kind: str, **fields: Any) -> bytes:
    """A server-sent event, with its type as event name and in its body."""
    return b"event: " + kind.encode() + b"\ndata: " + encode({"type": kind, **fields}) + b"\n\n"
