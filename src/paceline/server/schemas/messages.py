"""Bodies of /v1/messages, with the fields of Anthropic's API."""

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal, cast

from msgspec import UNSET, Struct, UnsetType
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
from paceline.tools.calls import CallDelta, ContentDelta, ReasoningDelta, ReplyDelta, kind_of

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
    system_fingerprint: str | UnsetType = UNSET


def message_event(kind: str, **fields: Any) -> bytes:
    """A server-sent event, with its type as event name and in its body."""
    return b"event: " + kind.encode() + b"\ndata: " + encode({"type": kind, **fields}) + b"\n\n"


NO_JSON = "INVALID_JSON"  # the key under which arguments are returned that are no JSON object


class ThinkingBlock(Struct, frozen=True):
    """What the model thought before its answer. It is not signed."""

    thinking: str
    signature: str = ""
    type: str = "thinking"


class DirectCaller(Struct, frozen=True):
    """Who makes a call: the model, and no program that it has written."""

    type: str = "direct"


class ToolUseBlock(Struct, frozen=True):
    """A call that the model asks for."""

    id: str
    name: str
    input: dict[str, Any]
    type: str = "tool_use"
    caller: DirectCaller = DirectCaller()


def block_of(first: ReplyDelta, text: str) -> Struct:
    """The block that begins with a delta, with its text so far."""
    match first:
        case ContentDelta():
            return TextBlock(text)
        case ReasoningDelta():
            return ThinkingBlock(text)
        case CallDelta():
            return ToolUseBlock(first.id or "", first.name or "", input_of(text))


def delta_of(delta: ReplyDelta) -> dict[str, str]:
    match delta:
        case ContentDelta(text):
            return {"type": "text_delta", "text": text}
        case ReasoningDelta(text):
            return {"type": "thinking_delta", "thinking": text}
        case CallDelta(arguments=text):
            return {"type": "input_json_delta", "partial_json": text}


def text_in(delta: ReplyDelta) -> str:
    return delta.arguments if isinstance(delta, CallDelta) else delta.text


def input_of(arguments: str) -> dict[str, Any]:
    """Arguments as an object. A model may be cut off in them, or write malformed ones."""
    try:
        found = json.loads(arguments or "{}")
    except ValueError:
        found = None
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {NO_JSON: arguments}


class MessageBlocks:
    """Turns the deltas of a reply into blocks, one after another, and into their events.

    `done` has the blocks that are complete.
    """

    def __init__(self) -> None:
        self.done: list[Struct] = []
        self._first: ReplyDelta | None = None
        self._texts: list[str] = []

    def put(self, delta: ReplyDelta) -> bytes:
        events = b""
        if self._first is None or kind_of(delta) != kind_of(self._first):
            events = self.close()
            self._first, self._texts = delta, []
            empty = block_of(delta, "")
            events += message_event(
                "content_block_start", index=len(self.done), content_block=empty
            )
        if not (text := text_in(delta)):
            return events
        self._texts.append(text)
        return events + message_event(
            "content_block_delta", index=len(self.done), delta=delta_of(delta)
        )

    def finish(self) -> bytes:
        """End the last block; a reply without any is an empty text."""
        events = b"" if self.done or self._first else self.put(ContentDelta(""))
        return events + self.close()

    def close(self) -> bytes:
        if self._first is None:
            return b""
        self.done.append(block_of(self._first, "".join(self._texts)))
        self._first = None
        return message_event("content_block_stop", index=len(self.done) - 1)
