"""POST /v1/messages: conversations in Anthropic's form."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from fastapi import APIRouter, Request, Response
from msgspec import UNSET
from msgspec.structs import replace

from paceline.core.sampling import LARGEST_ID
from paceline.engine.api import ChoiceOutput, GenerationRequest, RequestOutput, Stream, TextDelta
from paceline.engine.sampling_rules import SamplingRules
from paceline.server.body import parsed
from paceline.server.client_headers import ClientHeaders
from paceline.server.context import ServerContext
from paceline.server.errors import (
    GATEWAY_TIMEOUT,
    MESSAGE_ERRORS,
    MESSAGE_GENERATED,
    UNAVAILABLE,
    ApiError,
    ErrorBody,
    fault_of,
)
from paceline.server.parse import chat_ask, effort_of, unsupported
from paceline.server.replies.generation_response import GenerationJob, GenerationResponse
from paceline.server.replies.reply_parsing import (
    PLAIN_REPLY,
    ReplyFormats,
    ReplyParsing,
    ReplyReader,
)
from paceline.server.schemas.completions import encode
from paceline.server.schemas.envelope import TextFrame, transfer_of
from paceline.server.schemas.messages import (
    MessageBlocks,
    MessageBody,
    MessagesPrompt,
    MessagesRequest,
    MessagesUsage,
    StopReason,
    delta_of,
    message_event,
)
from paceline.server.schemas.requests import ChatRequest
from paceline.tools.calls import ContentDelta

Block = Mapping[str, Any]


def chat_messages(given: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Blocks of thinking and tool use are fields of a message; results are messages."""
    found: list[dict[str, Any]] = []
    for message in given:
        content = message.get("content")
        if not isinstance(content, list):
            found.append(dict(message))
        elif message.get("role") == "assistant":
            found.append(from_assistant(cast("list[Any]", content)))
        else:
            found += from_user(message, cast("list[Any]", content))
    return found


def from_assistant(blocks: list[Any]) -> dict[str, Any]:
    texts: list[Any] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for block in blocks:
        match block:
            case {"type": "thinking", "thinking": str(thought)}:
                thoughts.append(thought)
            case {"type": "redacted_thinking"}:
                raise unsupported("messages", "redacted thinking cannot be read; remove the block")
            case {"type": "tool_use", "id": str(id), "name": str(name), "input": dict()}:
                arguments = json.dumps(block["input"], ensure_ascii=False)
                function = {"name": name, "arguments": arguments}
                calls.append({"id": id, "type": "function", "function": function})
            case {"type": "tool_use"}:
                raise unsupported("messages", "a block of tool_use needs id, name and input")
            case _:
                texts.append(block)  # the chat template refuses what is no text
    fields = {"reasoning_content": "\n".join(thoughts), "tool_calls": calls}
    given = {name: value for name, value in fields.items() if value}
    return {"role": "assistant", "content": texts or None, **given}


def from_user(message: Mapping[str, Any], blocks: list[Any]) -> list[dict[str, Any]]:
    """Results come first: they answer the message before."""
    results = [block for block in blocks if is_result(block)]
    rest = [shown(block) for block in blocks if not is_result(block)]
    said = [{**message, "content": rest}] if rest or not results else []
    return [*map(result_of, results), *said]


def shown(block: Any) -> Any:
    """A block as a part of a chat message: an image is a URL there."""
    match block:
        case {
            "type": "image",
            "source": {"type": "base64", "media_type": str(kind), "data": str(data)},
        }:
            return {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{data}"}}
        case {"type": "image", "source": {"type": "url", "url": str(url)}}:
            return {"type": "image_url", "image_url": {"url": url}}
        case {"type": "image"}:
            raise unsupported(
                "messages", "the source of an image must be base64 with media_type and data, or url"
            )
        case _:
            return block


def is_result(block: Any) -> bool:
    return isinstance(block, dict) and cast(Block, block).get("type") == "tool_result"


def result_of(block: Block) -> dict[str, Any]:
    id = block.get("tool_use_id")
    if not isinstance(id, str):
        raise unsupported("messages", "a block of tool_result needs tool_use_id, a text")
    content = block.get("content")
    return {"role": "tool", "tool_call_id": id, "content": "" if content is None else content}


# Of the events of a plain reply, which has one block.
FRAME = TextFrame.of(
    lambda text: message_event("content_block_delta", index=0, delta=delta_of(ContentDelta(text)))
)


def message_routes(context: ServerContext) -> APIRouter:
    router = APIRouter(tags=["generation"], route_class=context.body_route)

    @router.post("/v1/messages", responses=MESSAGE_GENERATED)
    async def create_message(body: MessagesRequest, request: Request) -> Response:
        """Continue a conversation, in the form of Anthropic's API."""
        client = ClientHeaders.of(request.headers, "msg")
        model, rules = context.model(body.model), context.engine.rules
        reply = await parsed(request, message_reply, body, context.formats)
        generation = await parsed(request, message_ask, body, rules, reply)
        name = context.open_requests.name(client.request_id)
        block = context.engine.capacity.cached_block
        system = context.system_fingerprint or UNSET
        empty = MessageBody(name, model, MessagesUsage(0, 0), system_fingerprint=system)
        writer = MessageWriter(empty, generation, block, reply)
        return GenerationResponse(
            context, GenerationJob(client, name, [generation], writer, body.stream is True, reply)
        )

    @router.post("/v1/messages/count_tokens", responses=MESSAGE_ERRORS)
    async def count_tokens(body: MessagesPrompt, request: Request) -> dict[str, int]:
        """The number of tokens of a conversation after the chat template."""
        context.model(body.model)
        reply = await parsed(request, message_reply, body, context.formats)
        chat = await parsed(request, chat_of, body)
        prompt = await context.tokenized(chat_ask(chat, context.engine.rules, reply))
        return {"input_tokens": len(prompt.token_ids)}

    return router


def message_reply(body: MessagesPrompt, formats: ReplyFormats) -> ReplyParsing:
    budget = thinking_budget(body.thinking or {}, formats)
    is_single = (body.tool_choice or {}).get("disable_parallel_tool_use")
    parallel = not is_single if isinstance(is_single, bool) else None
    return formats.asked(body.tools, body.tool_choice, parallel).limited(budget)


def thinking_budget(thinking: Mapping[str, Any], formats: ReplyFormats) -> int | None:
    """Most tokens of thinking; None: no limit. 400 if the model cannot think as it is asked to."""
    kind = thinking.get("type", "disabled")
    if kind not in ("enabled", "adaptive", "disabled"):
        raise unsupported("thinking", f"its type is {kind!r}; use enabled, adaptive or disabled")
    if kind != "disabled" and formats.reasoning is None:
        raise unsupported(
            "thinking", "this model does not reason in blocks (--reasoning-parser); remove thinking"
        )
    budget = thinking.get("budget_tokens") if kind == "enabled" else None
    if budget is not None and (type(budget) is not int or not 0 < budget <= LARGEST_ID):
        raise unsupported("thinking", f"its budget_tokens is {budget!r}; give a positive number")
    return budget


def message_ask(
    body: MessagesRequest, rules: SamplingRules, reply: ReplyParsing = PLAIN_REPLY
) -> GenerationRequest:
    user = (body.metadata or {}).get("user_id")
    given: dict[str, Any] = {
        "max_tokens": body.max_tokens,
        "stop": body.stop_sequences,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
        "user": user if isinstance(user, str) else None,
        "cache_salt": body.cache_salt,
        "kv_transfer_params": body.kv_transfer_params,
    }
    formats = {"output_config": body.output_config, "output_format": body.output_format}
    return chat_ask(chat_of(body).model_copy(update=given), rules, reply, formats)


def chat_of(body: MessagesPrompt) -> ChatRequest:
    """The same conversation as a chat."""
    check_supported(body)
    system = [{"role": "system", "content": body.system}] if body.system else []
    config = {name: one for name, one in (body.output_config or {}).items() if name != "format"}
    effort = effort_of("output_config", config)
    thinking = (body.thinking or {}).get("type")
    variables = {"enable_thinking": thinking != "disabled"} if thinking else {}
    continues = body.messages[-1]["role"] == "assistant"
    return ChatRequest.model_validate(
        {
            "model": body.model,
            "messages": [*system, *chat_messages(body.messages)],
            "reasoning_effort": effort,
            "chat_template_kwargs": {**variables, **(body.chat_template_kwargs or {})} or None,
            "continue_final_message": continues,
        }
    )


def check_supported(body: MessagesPrompt) -> None:
    if not body.messages:
        raise unsupported("messages", "it is empty; give at least one message")
    for place, message in enumerate(body.messages):
        if message.get("role") not in ("user", "assistant"):
            role = message.get("role")
            raise unsupported(
                "messages", f"the role of message {place} is {role!r}; use user or assistant"
            )
    last = body.messages[-1]
    if last["role"] == "assistant" and not is_text(last.get("content")):
        raise unsupported(
            "messages",
            "the last message is the assistant's and has more than text, so that it cannot be "
            "continued; end with text, or with a message of the user",
        )


def is_text(content: Any) -> bool:
    """Whether the content of a message is nothing but text, which is not empty."""
    if not isinstance(content, list):
        return isinstance(content, str) and content != ""
    blocks = cast("list[Any]", content)
    return bool(blocks) and all(
        isinstance(one, dict) and cast("dict[str, Any]", one).get("type") == "text"
        for one in blocks
    )


class MessageWriter:
    """One block of content after another, as they begin. The prefix cache keeps blocks of
    `cached_block` tokens; 0: none."""

    def __init__(
        self,
        empty: MessageBody,
        generation: GenerationRequest,
        cached_block: int,
        reply: ReplyParsing,
    ) -> None:
        self._empty, self._cached_block = empty, cached_block
        self._most = generation.params.max_tokens
        self._reply = reply
        self._blocks = MessageBlocks()

    def opening(self, streams: Sequence[Stream]) -> bytes:
        (stream,) = streams
        self._reader = ReplyReader(self._reply, stream.prompt_token_ids)
        begun = replace(self._empty, usage=MessagesUsage(stream.prompt_tokens, 0))
        # Nothing but text will follow a plain reply's first block, so it begins at once.
        block = self._blocks.put(ContentDelta("")) if self._reply.is_plain else b""
        return message_event("message_start", message=begun) + block + message_event("ping")

    def delta(self, part: int, delta: TextDelta) -> bytes:
        return b"".join(map(self._blocks.put, self._reader.read(delta)))

    def frame(self, part: int, index: int) -> TextFrame | None:
        return FRAME if self._reply.is_plain else None

    def closing(self, outputs: Sequence[RequestOutput]) -> bytes:
        end = self._blocks.finish()
        try:
            return end + self._last(self._whole(outputs))
        except ApiError as error:
            return (b"" if self._reply.is_plain else end) + self.failing(error.body)

    def _last(self, whole: MessageBody) -> bytes:
        ended = {"stop_reason": whole.stop_reason, "stop_sequence": whole.stop_sequence}
        given = {"kv_transfer_params": whole.kv_transfer_params}
        transfer = {} if whole.kv_transfer_params is UNSET else given
        return message_event(
            "message_delta", delta=ended, usage=whole.usage, **transfer
        ) + message_event("message_stop")

    def failing(self, error: ErrorBody) -> bytes:
        return message_event("error", error=fault_of(error), request_id=self._empty.id)

    def whole(self, outputs: Sequence[RequestOutput]) -> bytes:
        (output,) = outputs
        self._reader = ReplyReader(self._reply, output.prompt_token_ids)
        self.delta(0, output.outputs[0])
        self._blocks.finish()
        return encode(self._whole(outputs))

    def _whole(self, outputs: Sequence[RequestOutput]) -> MessageBody:
        (output,) = outputs
        (answer,) = output.outputs
        stopped = answer.stop_reason if isinstance(answer.stop_reason, str) else None
        return replace(
            self._empty,
            usage=self._usage(output),
            content=self._blocks.done,
            stop_reason=self._stop_reason(output, answer),
            stop_sequence=stopped,
            kv_transfer_params=transfer_of(outputs),
        )

    def _usage(self, output: RequestOutput) -> MessagesUsage:
        """A prompt is kept in whole blocks, without its last token, which is always computed."""
        used, cached, created = output.usage, output.usage.cached_tokens, 0
        if self._cached_block:
            kept = (used.prompt_tokens - 1) // self._cached_block * self._cached_block
            created = max(kept - cached, 0)
        fresh = used.prompt_tokens - cached - created
        return MessagesUsage(fresh, used.completion_tokens, cached, created)

    def _stop_reason(self, output: RequestOutput, answer: ChoiceOutput) -> StopReason:
        """Why it ended. An answer that was cut short is an error: the API has no word for it."""
        match answer.finish_reason:
            case "stop":
                if self._reader.calling:
                    return "tool_use"
                return "stop_sequence" if isinstance(answer.stop_reason, str) else "end_turn"
            case "length":
                is_full = len(answer.token_ids) == self._most
                return "max_tokens" if is_full else "model_context_window_exceeded"
            case "timeout":
                raise ApiError(GATEWAY_TIMEOUT, output.error, code="timeout")
            case _:
                raise ApiError(UNAVAILABLE, "the request was aborted", code="aborted")
