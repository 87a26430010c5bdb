"""POST /v1/chat/completions."""

from collections.abc import Sequence

from fastapi import APIRouter, Request, Response
from msgspec import UNSET

from paceline.engine.api import RequestOutput, Stream, TextDelta
from paceline.server.body import parsed
from paceline.server.client_headers import ClientHeaders
from paceline.server.context import ServerContext
from paceline.server.errors import ErrorBody
from paceline.server.parse import chat_ask
from paceline.server.respond import GenerationJob, GenerationResponse
from paceline.server.schemas.completions import (
    AssistantMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    Delta,
    chat_logprobs,
    encode,
    event,
    prompt_column,
)
from paceline.server.schemas.envelope import Envelope
from paceline.server.schemas.openapi import GENERATED
from paceline.server.schemas.ready_events import TextFrame
from paceline.server.schemas.requests import ChatRequest


def chat_routes(context: ServerContext) -> APIRouter:
    router = APIRouter(tags=["generation"], route_class=context.body_route)

    @router.post("/v1/chat/completions", responses=GENERATED)
    async def create_chat_completion(body: ChatRequest, request: Request) -> Response:
        """Continue a conversation."""
        client = ClientHeaders.of(request.headers, "chatcmpl")
        model, rules = context.model(body.model), context.engine.rules
        generation = await parsed(request, chat_ask, body, rules)
        name = context.name(client.request_id)
        envelope = Envelope.of(body, name, model, context.settings.timings)
        writer = ChatWriter(envelope, body)
        return GenerationResponse(
            context, GenerationJob(client, name, [generation], writer, body.stream is True)
        )

    return router


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

    def whole(self, outputs: Sequence[RequestOutput]) -> bytes:
        envelope, (output,) = self._envelope, outputs
        choices = [
            ChatChoice(
                answer.index,
                AssistantMessage(answer.text),
                chat_logprobs(answer.logprobs, self._as_ids),
                answer.finish_reason,
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
