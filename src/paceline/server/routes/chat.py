"""POST /v1/chat/completions, of one conversation or of a batch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request, Response
from msgspec import UNSET
from msgspec.structs import replace

from paceline.engine.api import ChoiceOutput, RequestOutput, Stream, TextDelta
from paceline.server.body import parsed
from paceline.server.client_headers import ClientHeaders
from paceline.server.context import ServerContext
from paceline.server.errors import GENERATED, ErrorBody
from paceline.server.parse import (
    Conversation,
    asked_reply,
    begins_message,
    chat_asks,
    check_batch,
    check_template,
)
from paceline.server.replies.generation_response import GenerationJob, GenerationResponse
from paceline.server.replies.reply_parsing import ReplyParsing, ReplyReader
from paceline.server.schemas.chat_messages import AssistantMessage, Delta, chat_delta, chat_message
from paceline.server.schemas.completions import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatFinishReason,
    PromptColumn,
    chat_logprobs,
    encode,
    event,
    prompt_column,
)
from paceline.server.schemas.envelope import Envelope, TextFrame, transfer_of
from paceline.server.schemas.requests import BatchChatRequest, ChatBody, ChatRequest
from paceline.text.chat_messages import text_of
from paceline.tools.calls import joined


def chat_routes(context: ServerContext) -> APIRouter:
    router = APIRouter(tags=["generation"], route_class=context.body_route)

    async def answer(
        body: ChatBody, request: Request, conversations: Sequence[Conversation]
    ) -> Response:
        client = ClientHeaders.of(
            request.headers, "chatcmpl", body.request_id, body.session_id, body.prompt_cache_key
        )
        model, settings, rules = context.model(body.model), context.settings, context.engine.rules
        if isinstance(body, BatchChatRequest):
            check_batch(body, settings.max_prompts)
        check_template(body.chat_template, settings.trust_request_chat_template)
        reply = await parsed(request, asked_reply, body, context.formats)
        generations = await parsed(request, chat_asks, body, conversations, rules, reply)
        name = context.open_requests.name(client.request_id)
        starts = [MessageStart.of(body, one, settings.response_role) for one in conversations]
        envelope = Envelope.of(body, name, model, settings, context.system_fingerprint)
        writer = ChatWriter(envelope, body, starts, reply)
        job = GenerationJob(client, name, generations, writer, body.stream is True, reply)
        return GenerationResponse(context, job)

    @router.post("/v1/chat/completions", responses=GENERATED)
    async def create_chat_completion(body: ChatRequest, request: Request) -> Response:
        """Continue a conversation."""
        return await answer(body, request, [body.messages])

    @router.post("/v1/chat/completions/batch", responses=GENERATED)
    async def create_batch(body: BatchChatRequest, request: Request) -> Response:
        """Continue several conversations; the answer has a choice for each, in their order."""
        return await answer(body, request, body.messages)

    return router


@dataclass(frozen=True, slots=True)
class MessageStart:
    """How the message of an answer begins: its role, and the text that is echoed."""

    role: str = "assistant"
    text: str = ""

    @classmethod
    def of(cls, body: ChatBody, messages: Conversation, new_role: str) -> "MessageStart":
        """An answer that begins no message has the role of the last one.

        Only a message of the same role is echoed.
        """
        last: Mapping[str, Any] = messages[-1] if messages else {}
        role = new_role if begins_message(body) else str(last.get("role"))
        echoes = body.echo is True and last.get("role") == role
        return cls(role, text_of(last.get("content")) if echoes else "")


class ChatWriter:
    """Each choice begins with its role; its last chunk has the finish reason. Content, reasoning
    and tool calls are fields of their own.

    Of several chunks for one delta, the first has its logprobs, the last its finish reason.
    `starts` has the start of the message for each part; a chat that is not a batch has one part.
    """

    def __init__(
        self,
        envelope: Envelope,
        body: ChatBody,
        starts: Sequence[MessageStart],
        reply: ReplyParsing,
    ) -> None:
        self._envelope, self._body, self._starts = envelope, body, starts
        self._reply = reply
        self._readers: list[ReplyReader] = []  # of each part
        self._is_batch = isinstance(body, BatchChatRequest)
        self._with_ids = body.return_token_ids is True
        self._with_text = isinstance(body, ChatRequest) and body.return_prompt_text is True
        if reply.reasoning is not None:
            envelope.reasoning_tokens = reply.reasoning_tokens

    def opening(self, streams: Sequence[Stream]) -> bytes:
        self._readers = [ReplyReader(self._reply, one.prompt_token_ids) for one in streams]
        self._envelope.count_prompts(streams)
        (start,), (stream,) = self._starts, streams
        role, write, choices = Delta(start.role, ""), self._envelope.chat_event, self._body.n or 1
        prompt = stream.prompt_token_ids if self._with_ids else UNSET
        events = [
            write(ChatChunkChoice(at, role), UNSET if at else prompt) for at in range(choices)
        ]
        if start.text:
            echo = Delta(content=start.text)
            events += [write(ChatChunkChoice(at, echo)) for at in range(choices)]
        return b"".join(events)

    def delta(self, part: int, delta: TextDelta) -> bytes:
        self._envelope.count(delta)
        added = [chat_delta(one) for one in self._readers[part].read(delta)]
        shown = delta.finish_reason or delta.logprobs or (self._with_ids and delta.token_ids)
        if not added and shown:
            added = [Delta()]
        return b"".join(
            self._envelope.chat_event(self._choice(part, delta, one, at, len(added)))
            for at, one in enumerate(added)
        )

    def _choice(
        self, part: int, delta: TextDelta, added: Delta, at: int, chunks: int
    ) -> ChatChunkChoice:
        is_end = at == chunks - 1 and delta.finish_reason is not None
        return ChatChunkChoice(
            delta.index,
            added,
            None if at else chat_logprobs(delta.logprobs, self._envelope.as_ids),
            self._finish_reason(part, delta) if is_end else None,
            delta.stop_reason if is_end else UNSET,
            delta.token_ids if self._with_ids and not at else UNSET,
        )

    def frame(self, part: int, index: int) -> TextFrame | None:
        if self._with_ids or self._envelope.counts or not self._reply.is_plain:
            return None
        event = self._envelope.chat_event
        return TextFrame.of(lambda text: event(ChatChunkChoice(index, Delta(content=text))))

    def closing(self, outputs: Sequence[RequestOutput]) -> bytes:
        return self._envelope.closing(ChatChunk, outputs)

    def failing(self, error: ErrorBody) -> bytes:
        return event(error)

    def whole(self, outputs: Sequence[RequestOutput]) -> bytes:
        self._readers = [ReplyReader(self._reply, one.prompt_token_ids) for one in outputs]
        envelope, first = self._envelope, outputs[0]
        choices = [
            self._whole_choice(part, output, answer)
            for part, output in enumerate(outputs)
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
                None if self._is_batch else self._prompt_column(first),
                UNSET if self._is_batch else self._prompt_ids(first),
                transfer_of(outputs),
                envelope.metrics(outputs),
                prompt_text=first.prompt if self._with_text and first.prompt else UNSET,
                system_fingerprint=envelope.fingerprint,
            )
        )

    def _whole_choice(self, part: int, output: RequestOutput, answer: ChoiceOutput) -> ChatChoice:
        message = chat_message(joined(self._readers[part].read(answer)))
        return ChatChoice(
            answer.index + part,
            self._started(part, message),
            chat_logprobs(answer.logprobs, self._envelope.as_ids),
            self._finish_reason(part, answer),
            answer.stop_reason,
            answer.token_ids if self._with_ids else None,
            self._prompt_column(output) if self._is_batch else UNSET,
            self._prompt_ids(output) if self._is_batch else UNSET,
        )

    def _started(self, part: int, message: AssistantMessage) -> AssistantMessage:
        start = self._starts[part]
        content = start.text + (message.content or "") if start.text else message.content
        return replace(message, role=start.role, content=content)

    def _prompt_column(self, output: RequestOutput) -> PromptColumn | None:
        return prompt_column(output.prompt_logprobs, self._body.prompt_logprobs)

    def _prompt_ids(self, output: RequestOutput) -> Sequence[int] | None:
        return output.prompt_token_ids if self._with_ids else None

    def _finish_reason(self, part: int, delta: TextDelta) -> ChatFinishReason | None:
        is_call = delta.finish_reason == "stop" and delta.index in self._readers[part].calling
        return "tool_calls" if is_call else delta.finish_reason
