"""Bodies of /v1/messages, with the fields of Anthropic's API."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from msgspec import Struct
from pydantic import Field

from paceline.server.schemas.completions import encode
from paceline.server.schemas.constraints import REFUSED, RequestBody, refused
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
        None, description="enabled, adaptive or disabled; budget_tokens is not enforced"
    )
    mcp_servers: NoServers = None
    output_config: dict[str, Any] | None = Field(
        None, description="format, with type json_schema and a schema; effort"
    )
    context_management: Unedited = None
    output_format: dict[str, Any] | None = Field(None, description="the older place of format")


class MessagesRequest(MessagesPrompt):
    """A conversation to continue."""

    max_tokens: Most = Field(description="most tokens to generate")
    stop_sequences: Annotated[list[str], Field(max_length=MOST_STOPS, fail_fast=True)] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    metadata: dict[str, Any] | None = Field(None, description="user_id is the charged account")


class MessagesUsage(Struct, frozen=True):
    """Token counts; `input_tokens` leaves out those from the prefix cache."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0


class TextBlock(Struct, frozen=True):
    """The answer."""

    text: str
    type: str = "text"


class MessageBody(Struct, frozen=True):
    """A message, complete or before it has any content."""

    id: str
    model: str
    usage: MessagesUsage
    content: Sequence[Struct] = ()
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    type: str = "message"
    role: str = "assistant"


def message_event(kind: str, **fields: Any) -> bytes:
    """A server-sent event, with its type as event name and in its body."""
    return b"event: " + kind.encode() + b"\ndata: " + encode({"type": kind, **fields}) + b"\n\n"
