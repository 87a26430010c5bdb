"""POST /v1/chat/completions."""

from collections.abc import Sequence

from fastapi import APIRouter, Request, Response
from msgspec import UNSET

from paceline.engine.api import ChoiceOutput, RequestOutput, Stream, TextDelta
from paceline.server.body import parsed
from paceline.server.client_headers import ClientHeaders
from paceline.server.context import ServerContext
from paceline.server.errors import ErrorBody
from paceline.server.parse import chat_ask
from paceline.server.reply_parsing import ReplyFormats, ReplyParsing, ReplyReader
from paceline.server.respond import GenerationJob, GenerationResponse
from paceline.server.schemas.completions import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatFinishReason,
    chat_logprobs,
    encode,
    event,
    prompt_column,
)
from paceline.server.schemas.envelope import Envelope
from paceline.server.schemas.openapi import GENERATED
from paceline.server.schemas.ready_events import TextFrame
from paceline.server.schemas.requests import ChatRequest
from paceline.server.schemas.tool_calls import AssistantMessage, Delta, chat_delta, chat_message
from paceline.tools.calls import joined


def chat_routes(context: ServerContext) -> APIRouter:
    router = APIRouter(tags=["generation"], route_class=context.body_route)

    @router.post("/v1/chat/completions", responses=GENERATED)
    async def create_chat_completion(body: ChatRequest, request: Request) -> Response:
        """Continue a conversation."""
        client = ClientHeaders.of(request.headers, "chatcmpl")
        model, rules = context.model(body.model), context.engine.rules
        reply = await parsed(request, chat_reply, body, context.formats)
        generation = await parsed(request, chat_ask, body, rules, reply)
        name = context.name(client.request_id)
        envelope = Envelope.of(body, name, model, context.settings)
        writer = ChatWriter(envelope, body)
        if not reply.is_plain:
            writer = ChatReplyWriter(envelope, body, reply)
        return GenerationResponse(
            context, GenerationJob(client, name, [generation], writer, body.stream is True, reply)
        )

    return router


def chat_reply(body: ChatRequest, formats: ReplyFormats) -> ReplyParsing:
    with_reasoning = body.include_reasoning is not False
    return formats.asked(body.tools, body.tool_choice, body.parallel_tool_calls, with_reasoning)


class ChatWriter:
    """Each choice begins with its role; its last chunk has the finish reason."""

    def __init__(self, envelope: Envelope, body: ChatRequest) -> None:
        self._envelope, self._body = envelope, body
        self._as_ids = body.return_tokens_as_token_ids is True
        self._with_ids = body.return_token_ids is True

    def opening(self, streams: Sequence[Stream]) -> bytes:
        self._envelope.count_prompts(streams)
        role, (stream,) = Delta("assistant", ""), streams
        prompt = stream.prompt_token_ids if self._with_ids else UNSET
        return b"".join(
            self._envelope.chat_event(ChatChunkChoice(at, role), UNSET if at else prompt)
            for at in range(self._body.n or 1)
        )

    def delta(self, part: int, delta: TextDelta) -> bytes:
        self._envelope.count(delta)
        shown = delta.text or delta.finish_reason or delta.logprobs
        if not (shown or (self._with_ids and delta.token_ids)):
            return b""
        return self._envelope.chat_event(
            ChatChunkChoice(
                delta.index,
                Delta(content=delta.text or None),
                chat_logprobs(delta.logprobs, self._as_ids),
                delta.finish_reason,
                delta.stop_reason if delta.finish_reason else UNSET,
                delta.token_ids if self._with_ids else UNSET,
            ),
        )

    def frame(self, part: int, index: int) -> TextFrame | None:
        if self._with_ids or self._envelope.counts:
            return None
        event = self._envelope.chat_event
        return TextFrame.of(lambda text: event(ChatChunkChoice(index, Delta(content=text))))

    def closing(self, outputs: Sequence[RequestOutput]) -> bytes:
        return self._envelope.closing(ChatChunk, outputs)

    def failing(self, error: ErrorBody) -> bytes:
        return event(error)

    def _message(self, answer: ChoiceOutput) -> AssistantMessage:
        return AssistantMessage(answer.text)

    def _finish_reason(self, delta: TextDelta) -> ChatFinishReason | None:
        return delta.finish_reason

    def whole(self, outputs: Sequence[RequestOutput]) -> bytes:
        envelope, (output,) = self._envelope, outputs
        choices = [
            ChatChoice(
                answer.index,
                self._message(answer),
                chat_logprobs(answer.logprobs, self._as_ids),
                self._finish_reason(answer),
                answer.stop_reason,
                answer.token_ids if self._with_ids else UNSET,
            )
            for answer in output.outputs
        ]
        return encode(
            ChatCompletion(
                envelope.id,
                envelope.created,
                envelope.model,
                choices,
                envelope.usage(outputs),
                envelope.spent(outputs),
                prompt_column(output.prompt_logprobs, self._body.prompt_logprobs),
                output.prompt_token_ids if self._with_ids else UNSET,
            )
        )


class ChatReplyWriter(ChatWriter):
    """The same for replies with reasoning or tool calls: each part is in a field of its own.

    Of several chunks for one delta, the first has its logprobs, the last its finish reason.
    """

    def __init__(self, envelope: Envelope, body: ChatRequest, reply: ReplyParsing) -> None:
        super().__init__(envelope, body)
        self._reply = reply

    def opening(self, streams: Sequence[Stream]) -> bytes:
        self._reader = ReplyReader(self._reply, streams[0].prompt_token_ids)
        return super().opening(streams)

    def delta(self, part: int, delta: TextDelta) -> bytes:
        self._envelope.count(delta)
        added = [chat_delta(one) for one in self._reader.read(delta)]
        shown = delta.finish_reason or delta.logprobs or (self._with_ids and delta.token_ids)
        if not added and shown:
            added = [Delta()]
        return b"".join(
            self._envelope.chat_event(self._choice(delta, one, at, at == len(added) - 1))
            for at, one in enumerate(added)
        )

    def _choice(self, delta: TextDelta, added: Delta, at: int, is_last: bool) -> ChatChunkChoice:
        is_end = is_last and delta.finish_reason is not None
        return ChatChunkChoice(
            delta.index,
            added,
            None if at else chat_logprobs(delta.logprobs, self._as_ids),
            self._finish_reason(delta) if is_end else None,
            delta.stop_reason if is_end else UNSET,
            delta.token_ids if self._with_ids and not at else UNSET,
        )

    def frame(self, part: int, index: int) -> None:
        """None: a parser reads every text."""

    def whole(self, outputs: Sequence[RequestOutput]) -> bytes:
        self._reader = ReplyReader(self._reply, outputs[0].prompt_token_ids)
        return super().whole(outputs)

    def _message(self, answer: ChoiceOutput) -> AssistantMessage:
        return chat_message(joined(self._reader.read(answer)))

    def _finish_reason(self, delta: TextDelta) -> ChatFinishReason | None:
        is_call = delta.finish_reason == "stop" and delta.index in self._reader.calling
        return "tool_calls" if is_call else delta.finish_reason
