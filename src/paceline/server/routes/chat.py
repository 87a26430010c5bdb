"""POST /v1/chat/completions."""

from collections.abc import Sequence

from fastapi import APIRouter, Request, Response
from msgspec import UNSET

from paceline.engine.api import RequestOutput, SamplingParams, Stream, TextDelta
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
from paceline.server.schemas.requests import ChatRequest


def chat_routes(context: ServerContext) -> APIRouter:
    router = APIRouter(tags=["generation"], route_class=context.body_route)

    @router.post("/v1/chat/completions", responses=GENERATED)
    async def create_chat_completion(body: ChatRequest, request: Request) -> Response:
        """Continue a conversation."""
        client = ClientHeaders.of(request.headers, "chatcmpl")
        model, generation = context.model(body.model), await parsed(request, chat_ask, body)
        name = context.name(client.request_id)
        envelope = Envelope.of(body, name, model, context.settings.timings)
        writer = ChatWriter(envelope, generation.params)
        return GenerationResponse(
            context, GenerationJob(client, name, [generation], writer, body.stream is True)
        )

    return router


class ChatWriter:
    """Each choice begins with its role; its last chunk has the finish reason."""

    def __init__(self, envelope: Envelope, params: SamplingParams) -> None:
        self._envelope, self._params = envelope, params

    def opening(self, streams: Sequence[Stream]) -> bytes:
        self._envelope.count_prompts(streams)
        role = Delta("assistant", "")
        return b"".join(
            self._envelope.event(ChatChunk, ChatChunkChoice(at, role))
            for at in range(self._params.n)
        )

    def delta(self, part: int, delta: TextDelta) -> bytes:
        self._envelope.count(delta)
        if not (delta.text or delta.finish_reason or delta.logprobs):
            return b""
        return self._envelope.event(
            ChatChunk,
            ChatChunkChoice(
                delta.index,
                Delta(content=delta.text or None),
                chat_logprobs(delta.logprobs),
                delta.finish_reason,
                delta.stop_reason if delta.finish_reason else UNSET,
            ),
        )

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
                chat_logprobs(answer.logprobs),
                answer.finish_reason,
                answer.stop_reason,
            )
            for answer in output.outputs
        ]
        usage, timings = envelope.usage(outputs), envelope.spent(outputs)
        model, created = envelope.model, envelope.created
        prompt = prompt_column(output.prompt_logprobs, self._params.prompt_logprobs)
        return encode(ChatCompletion(envelope.id, created, model, choices, usage, timings, prompt))
