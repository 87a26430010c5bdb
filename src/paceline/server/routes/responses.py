"""POST /v1/responses: conversations in OpenAI's newer form."""

from collections.abc import Sequence
from functools import partial
from time import time
from typing import Any

from fastapi import APIRouter, Request, Response
from msgspec import Struct
from msgspec.structs import replace

from paceline.engine.api import GenerationRequest, RequestOutput, Stream, TextDelta
from paceline.engine.sampling_rules import SamplingRules
from paceline.server.background import Keep, start
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
from paceline.server.response_input import Item, input_items, messages
from paceline.server.routes.stored_responses import items_before
from paceline.server.schemas.completions import ChatLogprob, chat_logprobs, encode
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
from paceline.server.settings import ServerSettings

TEXT_FORMAT = {"type": "text"}
NOT_KEPT = "responses are not stored by this server"
LOGPROBS = "message.output_text.logprobs"


def response_routes(context: ServerContext) -> APIRouter:
    router = APIRouter(tags=["generation"], route_class=context.body_route)

    @router.post("/v1/responses", responses=GENERATED)
    async def create_response(body: ResponseRequest, request: Request) -> Response:
        """Continue a conversation, given as a text or as a list of messages."""
        client = ClientHeaders.of(request.headers, "resp")
        model, rules = context.model(body.model), context.engine.rules
        is_kept = stores(body, context.settings)
        earlier = await items_before(context, body.previous_response_id)
        reply = await parsed(request, response_reply, body, context.formats)
        generation = await parsed(request, response_ask, body, rules, reply, earlier)
        name = context.name(client.request_id)
        envelope = Envelope.of(body, name, model, context.settings)
        empty = begun(body, generation, name, model, is_kept)
        items = await parsed(request, encode, [*earlier, *input_items(body.input, name)])
        keep = partial(kept, context, items) if is_kept else unkept
        writer = ResponsesWriter(envelope, empty, keep)
        if not reply.is_plain:
            writer = ItemsWriter(envelope, empty, keep, reply)
        job = GenerationJob(client, name, [generation], writer, body.stream is True, reply)
        if not body.background:
            return GenerationResponse(context, job)
        queued = replace(empty, status="queued")
        start(context, job, queued, keep)
        own = {"X-Request-Id": client.request_id}
        return Response(encode(queued), headers=own, media_type="application/json")

    return router


def stores(body: ResponseRequest, settings: ServerSettings) -> bool:
    """Whether a response is stored; an error if the body needs that and it is not."""
    is_kept = settings.enable_responses_store and body.store is not False
    if settings.enable_responses_store and body.background and not is_kept:
        raise unsupported("background", "background can only be used when `store` is true")
    if settings.enable_responses_store and body.background and body.stream:
        raise unsupported("background", "it cannot be combined with stream; remove one of them")
    if not settings.enable_responses_store:
        for name in ("store", "background", "previous_response_id"):
            if getattr(body, name):
                raise unsupported(name, f"{NOT_KEPT} (--enable-responses-store); remove {name}")
    return is_kept


def kept(context: ServerContext, items: bytes, response: ResponseBody) -> None:
    context.responses.put(response.id, encode(response), items, response.background)


def unkept(response: ResponseBody) -> None:
    """The response is not stored."""


def response_reply(body: ResponseRequest, formats: ReplyFormats) -> ReplyParsing:
    with_reasoning = body.include_reasoning is not False
    return formats.asked(body.tools, body.tool_choice, body.parallel_tool_calls, with_reasoning)


def response_ask(
    body: ResponseRequest,
    rules: SamplingRules,
    reply: ReplyParsing = PLAIN_REPLY,
    earlier: Sequence[Item] = (),
) -> GenerationRequest:
    """`earlier` has the items of the response that precedes the input."""
    check_common(body)
    check_supported(body)
    scores = output_logprobs(body, rules, reply)
    most = body.max_tokens if body.max_output_tokens is None else body.max_output_tokens
    system = [{"role": "system", "content": body.instructions}] if body.instructions else []
    effort = effort_of("reasoning", body.reasoning) or body.reasoning_effort
    return GenerationRequest(
        messages=[*system, *messages(body.input, earlier)],
        params=reply.decoded(sampling(body, rules, most, scores)),
        tools=reply.shown(),
        variables=template_variables(None, effort),
        **common(body),
    )


def output_logprobs(body: ResponseRequest, rules: SamplingRules, reply: ReplyParsing) -> int | None:
    """The number of alternatives of each token; None: no log-probabilities."""
    rules.check_logprobs("top_logprobs", body.top_logprobs)
    if not body.top_logprobs and LOGPROBS not in (body.include or ()):
        return None
    if not reply.is_plain:
        raise unsupported(
            "top_logprobs" if body.top_logprobs else "include",
            "log-probabilities are not returned beside reasoning and tool calls on this route; "
            "use /v1/chat/completions",
        )
    return body.top_logprobs or 0


def check_supported(body: ResponseRequest) -> None:
    if body.conversation is not None:
        raise unsupported("conversation", "there are none; use previous_response_id")
    if (body.text or {}).get("verbosity") not in (None, "medium"):
        raise unsupported("text", "the verbosity cannot be set; remove verbosity")
    if (body.n or 1) > 1:
        raise unsupported("n", "a response has one choice; remove n")


def begun(
    body: ResponseRequest, generation: GenerationRequest, name: str, model: str, is_kept: bool
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
        previous_response_id=body.previous_response_id,
        store=is_kept,
        background=body.background is True,
        top_logprobs=generation.params.logprobs or 0,
        text={"format": (body.text or {}).get("format") or TEXT_FORMAT},
    )


def scored(delta: TextDelta) -> Sequence[ChatLogprob]:
    found = chat_logprobs(delta.logprobs)
    return () if found is None else found.content


class ResponsesWriter:
    """One message with one text; events are numbered from 0 without a gap."""

    def __init__(self, envelope: Envelope, begun: ResponseBody, keep: Keep) -> None:
        self._envelope, self._begun, self._keep = envelope, begun, keep
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
        if delta.logprobs:
            scores = scored(delta)
            return self._in_text("response.output_text.delta", delta=delta.text, logprobs=scores)
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
            self._in_text("response.output_text.done", text=part.text, logprobs=part.logprobs)
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
        text = OutputText(answer.text, logprobs=scored(answer))
        return OutputMessage(self._item, item_status(answer), (text,))

    def _response(self, outputs: Sequence[RequestOutput], items: Sequence[Struct]) -> ResponseBody:
        (output,) = outputs
        (answer,) = output.outputs
        status, incomplete = status_of(answer)
        whole = replace(
            self._begun,
            status=status,
            output=items,
            usage=usage_of(output, self._reasoning_tokens(outputs)),
            incomplete_details=incomplete,
            timings=self._envelope.spent(outputs),
        )
        self._keep(whole)
        return whole

    def _reasoning_tokens(self, outputs: Sequence[RequestOutput]) -> int:
        return 0

    def _in_text(self, kind: str, **fields: Any) -> bytes:
        return self._event(kind, **self._place, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        return response_event(kind, number, **fields)


class ItemsWriter(ResponsesWriter):
    """The same for replies with reasoning or calls: one item after another, as they begin."""

    def __init__(
        self, envelope: Envelope, begun: ResponseBody, keep: Keep, reply: ReplyParsing
    ) -> None:
        super().__init__(envelope, begun, keep)
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
