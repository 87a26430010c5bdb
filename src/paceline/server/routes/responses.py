"""POST /v1/responses: conversations in OpenAI's newer form, text in and text out."""

from collections.abc import Mapping, Sequence
from time import time
from typing import Any, cast

from fastapi import APIRouter, Request, Response
from msgspec.structs import replace

from paceline.engine.api import GenerationRequest, RequestOutput, Stream, TextDelta
from paceline.engine.sampling_rules import SamplingRules
from paceline.server.body import parsed
from paceline.server.client_headers import ClientHeaders
from paceline.server.context import ServerContext
from paceline.server.errors import ErrorBody
from paceline.server.parse import (
    check_common,
    check_tools,
    common,
    effort_of,
    sampling,
    template_variables,
    unsupported,
)
from paceline.server.respond import GenerationJob, GenerationResponse
from paceline.server.schemas.completions import encode
from paceline.server.schemas.envelope import Envelope
from paceline.server.schemas.openapi import GENERATED
from paceline.server.schemas.ready_events import NumberedFrame
from paceline.server.schemas.requests import ResponseRequest
from paceline.server.schemas.responses import (
    OutputMessage,
    OutputText,
    ResponseBody,
    response_event,
    status_of,
    usage_of,
)

TEXTS = ("input_text", "output_text", "text")
NOT_KEPT = "responses are not stored; send the whole conversation as input"


def response_routes(context: ServerContext) -> APIRouter:
    router = APIRouter(tags=["generation"], route_class=context.body_route)

    @router.post("/v1/responses", responses=GENERATED)
    async def create_response(body: ResponseRequest, request: Request) -> Response:
        """Continue a conversation, given as a text or as a list of messages."""
        client = ClientHeaders.of(request.headers, "resp")
        model, rules = context.model(body.model), context.engine.rules
        generation = await parsed(request, response_ask, body, rules)
        name = context.name(client.request_id)
        envelope = Envelope.of(body, name, model, context.settings.timings)
        writer = ResponsesWriter(envelope, begun(body, generation, name, model))
        return GenerationResponse(
            context, GenerationJob(client, name, [generation], writer, body.stream is True)
        )

    return router


def response_ask(body: ResponseRequest, rules: SamplingRules) -> GenerationRequest:
    check_common(body)
    check_supported(body)
    most = body.max_tokens if body.max_output_tokens is None else body.max_output_tokens
    system = [{"role": "system", "content": body.instructions}] if body.instructions else []
    effort = effort_of("reasoning", body.reasoning) or body.reasoning_effort
    return GenerationRequest(
        messages=[*system, *messages(body.input)],
        params=sampling(body, rules, most),
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
    check_tools(body.tools, body.tool_choice)
    if body.top_logprobs or "message.output_text.logprobs" in (body.include or ()):
        raise unsupported("top_logprobs", "not supported on this route; use /v1/chat/completions")
    kind = (body.text or {}).get("format") or {"type": "text"}
    if kind != {"type": "text"}:
        raise unsupported(
            "text",
            f"the format {kind!r} is not supported: structured output is not built yet; "
            "remove text",
        )
    if (body.text or {}).get("verbosity") not in (None, "medium"):
        raise unsupported("text", "the verbosity cannot be set; remove verbosity")
    if (body.n or 1) > 1:
        raise unsupported("n", "a response has one choice; remove n")


def messages(given: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The input as the messages of a chat."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not given:
        raise unsupported("input", "it is empty; give a text or at least one message")
    return [message(item) for item in given]


def message(item: Mapping[str, Any]) -> dict[str, Any]:
    kind, role = item.get("type", "message"), item.get("role")
    if kind != "message" or not isinstance(role, str):
        raise unsupported(
            "input", f"an item has the type {kind!r}; it must be a message with a role"
        )
    return {"role": role, "content": text_of(item.get("content"))}


def text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise unsupported("input", "the content of a message must be a text or a list of parts")
    return "".join(part_text(part) for part in cast("list[Any]", content))


def part_text(part: Any) -> str:
    found = cast("dict[str, Any]", part) if isinstance(part, dict) else {}
    text = found.get("text")
    if found.get("type") not in TEXTS or not isinstance(text, str):
        raise unsupported(
            "input", f"a part of a message has the type {found.get('type')!r}; it must be text"
        )
    return text


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
        whole = self._whole(outputs)
        (item,) = whole.output
        (part,) = item.content
        last = "response.completed" if whole.status == "completed" else "response.incomplete"
        return (
            self._in_text("response.output_text.done", text=part.text, logprobs=())
            + self._in_text("response.content_part.done", part=part)
            + self._event("response.output_item.done", output_index=0, item=item)
            + self._event(last, response=whole)
        )

    def failing(self, error: ErrorBody) -> bytes:
        detail = error.error
        return self._event("error", code=detail.code, message=detail.message, param=detail.param)

    def whole(self, outputs: Sequence[RequestOutput]) -> bytes:
        return encode(self._whole(outputs))

    def _whole(self, outputs: Sequence[RequestOutput]) -> ResponseBody:
        (output,) = outputs
        (answer,) = output.outputs
        status, incomplete = status_of(answer)
        ended = "completed" if status == "completed" else "incomplete"
        return replace(
            self._begun,
            status=status,
            output=(OutputMessage(self._item, ended, (OutputText(answer.text),)),),
            usage=usage_of(output),
            incomplete_details=incomplete,
            timings=self._envelope.spent(outputs),
        )

    def _in_text(self, kind: str, **fields: Any) -> bytes:
        return self._event(kind, **self._place, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        return response_event(kind, number, **fields)
