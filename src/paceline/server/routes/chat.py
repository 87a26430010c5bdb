"""POST /v1/chat/completions: conversations."""

from collections.abc import Sequence

from fastapi import APIRouter, Request, Response
from msgspec import UNSET

from paceline.engine.api import Piece, RequestOutput, SamplingParams, Stream
from paceline.server.client_headers import Caller
from paceline.server.context import Desk
from paceline.server.errors import ErrorBody
from paceline.server.parse import chat_ask
from paceline.server.respond import Answering, Work
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


def chat_routes(desk: Desk) -> APIRouter:
    router = APIRouter(tags=["generation"])

    @router.post("/v1/chat/completions", responses=GENERATED)
    async def create_chat_completion(body: ChatRequest, request: Request) -> Response:
        """Continue a conversation."""
        caller = Caller.of(request.headers, "chatcmpl")
        model, ask = desk.model(body.model), chat_ask(body)
        name = desk.name(caller.request_id)
        envelope = Envelope.of(body, name, model, desk.settings.timings)
        form = ChatForm(envelope, ask.params)
        return Answering(desk, Work(caller, name, [ask], form, body.stream is True))

    return router


class ChatForm:
    """Every choice begins with its role, and its last chunk has the finish reason."""

    def __init__(self, envelope: Envelope, params: SamplingParams) -> None:
        self._envelope, self._params = envelope, params

    def opening(self, streams: Sequence[Stream]) -> bytes:
        self._envelope.count_prompts(streams)
        role = Delta("assistant", "")
        return b"".join(
            self._envelope.event(ChatChunk, ChatChunkChoice(at, role))
            for at in range(self._params.n)
        )

    def piece(self, part: int, piece: Piece) -> bytes:
        self._envelope.count(piece)
        if not (piece.text or piece.finish_reason or piece.logprobs):
            return b""
        return self._envelope.event(
            ChatChunk,
            ChatChunkChoice(
                piece.index,
                Delta(content=piece.text or None),
                chat_logprobs(piece.logprobs),
                piece.finish_reason,
                piece.stop_reason if piece.finish_reason else UNSET,
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
