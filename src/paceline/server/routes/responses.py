"""POST /v1/responses: conversations in OpenAI's newer form."""

from collections.abc import Sequence
from time import time
from typing import Any

from fastapi import APIRouter, Request, Response
from msgspec import Struct
from msgspec.structs import replace

from paceline.engine.api import GenerationRequest, RequestOutput, Stream, TextDelta
from paceline.engine.sampling_rules import SamplingRules
from paceline.server.body import parsed
from paceline.server.client_headers import ClientHeaders
from paceline.server.context import ServerContext
from paceline.server.errors import ErrorBody
from paceline.server.parse import (
    check_common,
    common,
    effort_of,
    sampling,
    template_variables,
    unsupported,
)
from paceline.server.reply_parsing import (
    PLAIN_REPLY,
    ReplyFormats,
    ReplyParsing,
    ReplyReader,
)
from paceline.server.respond import GenerationJob, GenerationResponse
from paceline.server.response_input import messages
from paceline.server.schemas.completions import encode
from paceline.server.schemas.envelope import Envelope
from paceline.server.schemas.openapi import GENERATED
from paceline.server.schemas.ready_events import NumberedFrame
from paceline.server.schemas.requests import ResponseRequest
from paceline.server.schemas.response_items import ResponseItems
from paceline.server.schemas.responses import (
    OutputMessage,
    OutputText,
    ResponseBody,
    item_status,
    response_event,
    status_of,
    usage_of,
)

TEXT_FORMAT = {"type": "text"}
NOT_KEPT = "responses are not stored; send the whole conversation as input"


def response_routes(context: ServerContext) -> APIRouter:
    router = APIRouter(tags=["generation"], route_class=context.body_route)

    @router.post("/v1/responses", responses=GENERATED)
    async def create_response(body: ResponseRequest, request: Request) -> Response:
        """Continue a conversation, given as a text or as a list of messages."""
        client = ClientHeaders.of(request.headers, "resp")
        model, rules = context.model(body.model), context.engine.rules
        reply = await parsed(request, response_reply, body, context.formats)
        generation = await parsed(request, response_ask, body, rules, reply)
        name = context.name(client.request_id)
        envelope = Envelope.of(body, name, model, context.settings)
        empty = begun(body, generation, name, model)
        writer = ResponsesWriter(envelope, empty)
        if not reply.is_plain:
            writer = ItemsWriter(envelope, empty, reply)
        return GenerationResponse(
            context, GenerationJob(client, name, [generation], writer, body.stream is True, reply)
        )

    return router


def response_reply(body: ResponseRequest, formats: ReplyFormats) -> ReplyParsing:
    with_reasoning = body.include_reasoning is not False
    return formats.asked(body.tools, body.tool_choice, body.parallel_tool_calls, with_reasoning)


def response_ask(
    body: ResponseRequest, rules: SamplingRules, reply: ReplyParsing = PLAIN_REPLY
) -> GenerationRequest:
    check_common(body)
    check_supported(body)
    most = body.max_tokens if body.max_output_tokens is None else body.max_output_tokens
    system = [{"role": "system", "content": body.instructions}] if body.instructions else []
    effort = effort_of("reasoning", body.reasoning) or body.reasoning_effort
    return GenerationRequest(
        messages=[*system, *messages(body.input)],
        params=reply.decoded(sampling(body, rules, most)),
        tools=reply.shown(),
        variables=template_variables(None, effort),
        **common(body),
    )


def check_supported(body: ResponseRequest) -> None:
    if body.previous_response_id is not None:
        raise unsupported("previous_response_id", NOT_KEPT)
    if body.conversation is not None:
        raise unsupported("conversation", NOT_KEPT)
    if body.background:
        raise unsupported("background", "background responses are not supported; remove background")
    if body.top_logprobs or "message.output_text.logprobs" in (body.include or ()):
        raise unsupported("top_logprobs", "not supported on this route; use /v1/chat/completions")
    if (body.text or {}).get("verbosity") not in (None, "medium"):
        raise unsupported("text", "the verbosity cannot be set; remove verbosity")
    if (body.n or 1) > 1:
        raise unsupported("n", "a response has one choice; remove n")


def begun(
    body: ResponseRequest, generation: GenerationRequest, name: str, model: str
) -> ResponseBody:
    """The response before it has any output."""
    return ResponseBody(
        name,
        int(time()),
        model,
        body.instructions,
        generation.params.max_tokens,
        generation.params.temperature,
        generation.params.top_p,
        body.user,
        body.metadata or {},
        parallel_tool_calls=body.parallel_tool_calls is not False,
        tool_choice=body.tool_choice or "auto",
        tools=body.tools or (),
        text={"format": (body.text or {}).get("format") or TEXT_FORMAT},
    )


class ResponsesWriter:
    """One message with one text; events are numbered from 0 without a gap."""

    def __init__(self, envelope: Envelope, begun: ResponseBody) -> None:
        self._envelope, self._begun = envelope, begun
        self._item = f"msg-{begun.id}"
        self._place = {"item_id": self._item, "output_index": 0, "content_index": 0}
        self._number = 0
        self._frame = NumberedFrame.of(self._text_event)

    def opening(self, streams: Sequence[Stream]) -> bytes:
        empty = OutputMessage(self._item, "in_progress", ())
        return (
            self._event("response.created", response=self._begun)
            + self._event("response.in_progress", response=self._begun)
            + self._event("response.output_item.added", output_index=0, item=empty)
            + self._in_text("response.content_part.added", part=OutputText(""))
        )

    def delta(self, part: int, delta: TextDelta) -> bytes:
        if not delta.text:
            return b""
        number, self._number = self._number, self._number + 1
        return self._frame.event(number, delta.text)

    def frame(self, part: int, index: int) -> None:
        """None: the number of an event precedes its text."""

    def _text_event(self, number: int, text: str) -> bytes:
        kind, place = "response.output_text.delta", self._place
        return response_event(kind, number, **place, delta=text, logprobs=())

    def closing(self, outputs: Sequence[RequestOutput]) -> bytes:
        (output,) = outputs
        item = self._message(output)
        (part,) = item.content
        return (
            self._in_text("response.output_text.done", text=part.text, logprobs=())
            + self._in_text("response.content_part.done", part=part)
            + self._event("response.output_item.done", output_index=0, item=item)
            + self._last(self._response(outputs, (item,)))
        )

    def _last(self, whole: ResponseBody) -> bytes:
        is_complete = whole.status == "completed"
        kind = "response.completed" if is_complete else "response.incomplete"
        return self._event(kind, response=whole)

    def failing(self, error: ErrorBody) -> bytes:
        detail = error.error
        return self._event("error", code=detail.code, message=detail.message, param=detail.param)

    def whole(self, outputs: Sequence[RequestOutput]) -> bytes:
        (output,) = outputs
        return encode(self._response(outputs, (self._message(output),)))

    def _message(self, output: RequestOutput) -> OutputMessage:
        (answer,) = output.outputs
        return OutputMessage(self._item, item_status(answer), (OutputText(answer.text),))

    def _response(self, outputs: Sequence[RequestOutput], items: Sequence[Struct]) -> ResponseBody:
        (output,) = outputs
        (answer,) = output.outputs
        status, incomplete = status_of(answer)
        return replace(
            self._begun,
            status=status,
            output=items,
            usage=usage_of(output, self._reasoning_tokens(outputs)),
            incomplete_details=incomplete,
            timings=self._envelope.spent(outputs),
        )

    def _reasoning_tokens(self, outputs: Sequence[RequestOutput]) -> int:
        return 0

    def _in_text(self, kind: str, **fields: Any) -> bytes:
        return self._event(kind, **self._place, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        return response_event(kind, number, **fields)


class ItemsWriter(ResponsesWriter):
    """The same for replies with reasoning or calls: one item after another, as they begin."""

    def __init__(self, envelope: Envelope, begun: ResponseBody, reply: ReplyParsing) -> None:
        super().__init__(envelope, begun)
        self._reply = reply
        self._items = ResponseItems(begun.id, self._event)

    def opening(self, streams: Sequence[Stream]) -> bytes:
        self._reader = ReplyReader(self._reply, streams[0].prompt_token_ids)
        return self._event("response.created", response=self._begun) + self._event(
            "response.in_progress", response=self._begun
        )

    def delta(self, part: int, delta: TextDelta) -> bytes:
        return b"".join(map(self._items.put, self._reader.read(delta)))

    def closing(self, outputs: Sequence[RequestOutput]) -> bytes:
        (answer,) = outputs[0].outputs
        events = self._items.finish(item_status(answer))
        return events + self._last(self._response(outputs, self._items.done))

    def whole(self, outputs: Sequence[RequestOutput]) -> bytes:
        (output,) = outputs
        (answer,) = output.outputs
        self._reader = ReplyReader(self._reply, output.prompt_token_ids)
        self.delta(0, answer)
        self._items.finish(item_status(answer))
        return encode(self._response(outputs, self._items.done))

    def _reasoning_tokens(self, outputs: Sequence[RequestOutput]) -> int:
        return self._reply.reasoning_tokens(outputs)
