"""Messages of chats, whole and as deltas, with tool calls and reasoning."""

from collections.abc import Sequence
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from paceline.tools.calls import CallDelta, ContentDelta, ReasoningDelta, Reply, ReplyDelta


class FunctionBody(Struct, frozen=True):
    """What is called, with its arguments as JSON; of a streamed call, what is new."""

    arguments: str
    name: str | UnsetType = UNSET


class ToolCallBody(Struct, frozen=True):
    """A tool call of a message."""

    id: str
    function: FunctionBody
    type: str = "function"


class ToolCallDelta(Struct, frozen=True):
    """More of a tool call: id, type and name once."""

    index: int
    function: FunctionBody
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


class Delta(Struct, frozen=True, omit_defaults=True):
    """What a chunk adds to a message. `reasoning` is the newer name of `reasoning_content`."""

    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: Sequence[ToolCallDelta] | None = None


class AssistantMessage(Struct, frozen=True):
    """A whole message; its content is null if it has tool calls or reasoning alone."""

    content: str | None
    role: str = "assistant"
    refusal: None = None
    annotations: tuple[()] = ()
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: Sequence[ToolCallBody] | UnsetType = UNSET


def chat_delta(delta: ReplyDelta) -> Delta:
    match delta:
        case ContentDelta(text):
            return Delta(content=text)
        case ReasoningDelta(text):
            return Delta(reasoning_content=text, reasoning=text)
        case CallDelta():
            return Delta(tool_calls=(call_delta(delta),))


def call_delta(delta: CallDelta) -> ToolCallDelta:
    if delta.id is None or delta.name is None:
        return ToolCallDelta(delta.index, FunctionBody(delta.arguments))
    function = FunctionBody(delta.arguments, delta.name)
    return ToolCallDelta(delta.index, function, delta.id, "function")


def chat_message(reply: Reply) -> AssistantMessage:
    reasoning = reply.reasoning or UNSET
    calls = [ToolCallBody(call.id, FunctionBody(call.arguments, call.name)) for call in reply.calls]
    is_empty = not calls and reply.reasoning is None
    return AssistantMessage(
        reply.content or ("" if is_empty else None),
        reasoning_content=reasoning,
        reasoning=reasoning,
        tool_calls=calls or UNSET,
    )
