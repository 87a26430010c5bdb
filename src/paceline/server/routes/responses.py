"""POST /v1/responses, conversations in OpenAI's newer form, and /v1/responses/compact."""

from collections.abc import Sequence
from functools import partial
from time import time
from typing import Any

from fastapi import APIRouter, Request, Response
from msgspec import UNSET
from msgspec.structs import replace
from pydantic import Field

from paceline.engine.api import GenerationRequest, RequestOutput, SamplingParams
from paceline.engine.sampling_rules import SamplingRules
from paceline.server.body import parsed
from paceline.server.client_headers import ClientHeaders
from paceline.server.context import ServerContext
from paceline.server.errors import BROKEN, ERRORS, GENERATED, TOO_LARGE, ApiError
from paceline.server.parse import (
    asked_reply,
    check_common,
    common,
    effort_of,
    sampling,
    template_variables,
    unsupported,
)
from paceline.server.replies.event_stream import MessageLogprobs, TokenOffsets
from paceline.server.replies.generation_response import GenerationJob, GenerationResponse
from paceline.server.replies.reply_parsing import PLAIN_REPLY, ReplyParsing, ReplyReader
from paceline.server.replies.response_writer import WholeWriter
from paceline.server.responses.background import EventResponse, start
from paceline.server.responses.conversations import Turn, conversation_id
from paceline.server.responses.events import ResponsesWriter, ScoreReader
from paceline.server.responses.input import Item, compaction, input_items, messages
from paceline.server.responses.store import StoredResponse
from paceline.server.routes.stored_responses import check_stored, items_before, session_of
from paceline.server.schemas.completions import encode
from paceline.server.schemas.constraints import RequestBody
from paceline.server.schemas.envelope import Envelope
from paceline.server.schemas.requests import InputTokensRequest, Messages, ResponseRequest
from paceline.server.schemas.responses import ResponseBody, ResponseFault, usage_of
from paceline.server.settings import ServerSettings
from paceline.text.tokenizer import Tokenizer
from paceline.tools.calls import ContentDelta

TEXT_FORMAT = {"type": "text"}
NO_ITEMS = b"[]"
SHOWN = {"description": None, "parameters": None, "strict": None}  # of each tool
LOGPROBS = "message.output_text.logprobs"
SUMMARY_TOKENS = 1024  # at most; fewer if the context has no room for them
KEPT_ROLES = ("user", "system", "developer")
TASK = (
    "Summarize this conversation, so that it can be continued by someone who has only the summary. "
    "Keep facts, names, numbers, decisions, results of tools and open questions. "
    "Write nothing but the summary."
)


def response_routes(context: ServerContext) -> APIRouter:
    router = APIRouter(tags=["generation"], route_class=context.body_route)

    @router.post("/v1/responses", responses=GENERATED)
    async def create_response(body: ResponseRequest, request: Request) -> Response:
        """Continue a conversation, given as a text or as a list of messages."""
        client = ClientHeaders.of(
            request.headers, "resp", body.request_id, body.session_id, body.prompt_cache_key
        )
        model, rules = context.model(body.model), context.engine.rules
        is_kept = stores(body, context.settings)
        earlier = await items_before(context, body)
        reply = await parsed(request, asked_reply, body, context.formats)
        generation = await parsed(request, response_ask, body, rules, reply, earlier)
        name = context.open_requests.name(client.request_id)
        if not client.session_id:
            client = client.in_session(await session_of(context, body, name))
        envelope = Envelope.of(body, name, model, context.settings)
        empty = begun(body, generation, name, model, is_kept)
        empty = replace(empty, system_fingerprint=context.system_fingerprint or UNSET)
        given = input_items(body.input, name)
        items = await parsed(request, encode, [*earlier, *given])
        is_streamed = body.stream is True
        has_log = is_streamed and empty.background
        keep = partial(kept, context, items, has_log, client.session_id) if is_kept else unkept
        turn = Turn(context, conversation_id(body.conversation), given, keep)
        scores = score_reader(context.tokenizer, generation.params)
        writer = ResponsesWriter(envelope, empty, turn.keep, reply, scores)
        job = GenerationJob(client, name, [generation], writer, is_streamed, reply, turn.add)
        if not empty.background:
            return GenerationResponse(context, job)
        check_fits(context, StoredResponse(encode(empty), items))
        start(context, job, writer)
        own = {"X-Request-Id": client.request_id}
        if is_streamed:
            return EventResponse(context, name, headers=own)
        queued = encode(replace(empty, status="queued"))
        return Response(queued, headers=own, media_type="application/json")

    @router.post("/v1/responses/input_tokens", responses=ERRORS)
    async def count_input_tokens(body: InputTokensRequest, request: Request) -> dict[str, Any]:
        """The number of tokens of the input of a response, after the chat template."""
        context.model(body.model)
        given = body.model_dump(exclude_none=True)
        whole = ResponseRequest.model_validate({"input": [], **given})
        stores(whole, context.settings)
        earlier = await items_before(context, body)
        reply = await parsed(request, asked_reply, whole, context.formats)
        rules = context.engine.rules
        asked = await parsed(request, response_ask, whole, rules, reply, earlier)
        prompt = await context.tokenized(asked)
        return {"object": "response.input_tokens", "input_tokens": len(prompt.token_ids)}

    return router


def score_reader(tokenizer: Tokenizer, params: SamplingParams) -> ScoreReader | None:
    """What finds the log-probabilities of messages; None if they are not wanted."""
    if params.logprobs is None:
        return None
    skips = params.skip_special_tokens
    return lambda prompt: MessageLogprobs(TokenOffsets(tokenizer, skips, prompt))


def stores(body: ResponseRequest, settings: ServerSettings) -> bool:
    """Whether a response is stored; an error if the body needs that and it is not."""
    is_kept = settings.enable_responses_store and body.store is not False
    if settings.enable_responses_store and body.background and not is_kept:
        raise unsupported("background", "background can only be used when `store` is true")
    check_stored(settings, body)
    return is_kept


def kept(
    context: ServerContext, items: bytes, has_log: bool, session: str, response: ResponseBody
) -> None:
    """Store a response. One of the background that is too large is stored as failed."""
    stored = StoredResponse(encode(response), items, response.background, has_log, session)
    if context.responses.put(response.id, stored) or not response.background:
        return
    fault = ResponseFault("response_too_large", too_large(context, stored))
    failed = replace(response, status="failed", output=(), error=fault, incomplete_details=None)
    context.responses.put(response.id, StoredResponse(encode(failed), NO_ITEMS, True, has_log))


def check_fits(context: ServerContext, stored: StoredResponse) -> None:
    """413 if a response without output is too large to be stored."""
    if stored.size > context.responses.most_bytes:
        raise ApiError(TOO_LARGE, too_large(context, stored), param="background")


def too_large(context: ServerContext, stored: StoredResponse) -> str:
    return (
        f"the response has {stored.size} bytes with its input, and a store of "
        f"{context.responses.most_bytes} cannot keep it; shorten it, do without background, or "
        "raise --stored-response-bytes"
    )


def unkept(response: ResponseBody) -> None:
    """The response is not stored."""


def response_ask(
    body: ResponseRequest,
    rules: SamplingRules,
    reply: ReplyParsing = PLAIN_REPLY,
    earlier: Sequence[Item] = (),
) -> GenerationRequest:
    """`earlier` has the items of the response that precedes the input."""
    check_common(body)
    check_supported(body)
    scores = output_logprobs(body, rules)
    most = body.max_tokens if body.max_output_tokens is None else body.max_output_tokens
    system = [{"role": "system", "content": body.instructions}] if body.instructions else []
    effort = effort_of("reasoning", body.reasoning) or body.reasoning_effort
    return GenerationRequest(
        messages=[*system, *messages(body.input, earlier)],
        params=reply.decoded(sampling(body, rules, most, scores)),
        tools=reply.shown(),
        variables=template_variables(body.chat_template_kwargs, effort),
        **common(body),
    )


def output_logprobs(body: ResponseRequest, rules: SamplingRules) -> int | None:
    """The number of alternatives of each token; None: no log-probabilities."""
    rules.check_logprobs("top_logprobs", body.top_logprobs)
    if not body.top_logprobs and LOGPROBS not in (body.include or ()):
        return None
    return body.top_logprobs or 0


def check_supported(body: ResponseRequest) -> None:
    if (body.text or {}).get("verbosity") not in (None, "medium"):
        raise unsupported("text", "the verbosity cannot be set; remove verbosity")
    if (body.n or 1) > 1:
        raise unsupported("n", "a response has one choice; remove n")


def begun(
    body: ResponseRequest, generation: GenerationRequest, name: str, model: str, is_kept: bool
) -> ResponseBody:
    """The response before it has any output."""
    params, talk = generation.params, conversation_id(body.conversation)
    effort = effort_of("reasoning", body.reasoning) or body.reasoning_effort
    return ResponseBody(
        name,
        int(time()),
        model,
        body.instructions,
        params.max_tokens,
        params.temperature,
        params.top_p,
        body.user,
        body.metadata or {},
        parallel_tool_calls=body.parallel_tool_calls is not False,
        tool_choice=body.tool_choice or "auto",
        tools=[SHOWN | tool for tool in body.tools or ()],
        previous_response_id=body.previous_response_id,
        conversation=None if talk is None else {"id": talk},
        store=is_kept,
        background=body.background is True,
        top_logprobs=params.logprobs or 0,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        safety_identifier=body.safety_identifier,
        prompt_cache_key=body.prompt_cache_key,
        reasoning={"effort": effort, "summary": None},
        text={"format": (body.text or {}).get("format") or TEXT_FORMAT},
    )


class CompactRequest(RequestBody):
    """A conversation to shorten."""

    model: str = Field(description="a name from /v1/models")
    input: str | Messages | None = Field(None, description="a text, or messages")
    instructions: str | None = Field(None, description="the system message")
    previous_response_id: str | None = Field(
        None, description="the stored response that precedes the input"
    )
    conversation: str | dict[str, Any] | None = Field(
        None, description="the conversation that precedes the input; it is not changed"
    )
    user: str | None = Field(None, description="the account that is charged")
    priority: int | None = Field(None, description="smaller goes first")
    cache_salt: str | None = Field(None, description="share cached prefixes with this salt only")
    timeout: float | None = Field(None, description="seconds after which the request ends")


def compaction_routes(context: ServerContext) -> APIRouter:
    router = APIRouter(tags=["generation"], route_class=context.body_route)

    @router.post("/v1/responses/compact", responses=ERRORS)
    async def compact(body: CompactRequest, request: Request) -> Response:
        """Have the model summarize a conversation; a later input begins with the output."""
        client = ClientHeaders.of(request.headers, "resp")
        context.model(body.model)
        check_stored(context.settings, body)
        earlier = await items_before(context, body)
        reply = context.formats.asked(None, None, None)
        asked = await parsed(request, compact_ask, body, context.engine.rules, earlier)
        name = context.open_requests.name(client.request_id)
        items = [*earlier, *input_items(body.input or [], name)]

        def write(outputs: Sequence[RequestOutput]) -> bytes:
            return encode(compacted(name, items, outputs, reply))

        job = GenerationJob(client, name, [asked], WholeWriter(write), stream=False)
        return GenerationResponse(context, job)

    return router


def compact_ask(
    body: CompactRequest, rules: SamplingRules, earlier: Sequence[Item]
) -> GenerationRequest:
    system = [{"role": "system", "content": body.instructions}] if body.instructions else []
    return GenerationRequest(
        messages=[*system, *with_task(messages(body.input or [], earlier))],
        params=rules.params(max_tokens=SUMMARY_TOKENS, temperature=0.0),
        variables={"enable_thinking": False},
        priority=body.priority or 0,
        tenant=body.user or "",
        cache_salt=body.cache_salt or "",
        adapter=body.model,
        timeout=body.timeout,
    )


def with_task(talk: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The task as a message, or at the end of the last one: roles alternate in some templates.

    It comes last, so that the conversation is found in the prefix cache.
    """
    last = talk[-1]
    if last["role"] != "user":
        return [*talk, {"role": "user", "content": TASK}]
    content = last["content"]
    if isinstance(content, str):
        return [*talk[:-1], {**last, "content": f"{content}\n\n{TASK}"}]
    return [*talk[:-1], {**last, "content": [*content, {"type": "text", "text": TASK}]}]


def compacted(
    name: str, items: Sequence[Item], outputs: Sequence[RequestOutput], reply: ReplyParsing
) -> dict[str, Any]:
    """The body of the answer. Messages of the assistant, calls and older summaries are left out."""
    kept = [
        {**item, "status": "completed"}
        for item in items
        if item["type"] == "message" and item["role"] in KEPT_ROLES
    ]
    (output,) = outputs
    return {
        "id": name,
        "object": "response.compaction",
        "created_at": int(time()),
        "output": [*kept, compaction(f"cmp-{name}", summary_in(output, reply))],
        "usage": usage_of(output, reply.reasoning_tokens(outputs)),
    }


def summary_in(output: RequestOutput, reply: ReplyParsing) -> str:
    """The text of an answer. An empty one would lose the conversation, so it is an error."""
    (answer,) = output.outputs
    text = answer.text
    if not reply.is_plain:
        found = ReplyReader(reply, output.prompt_token_ids).read(answer)
        text = "".join(one.text for one in found if isinstance(one, ContentDelta))
    if not text.strip():
        problem = "the model has written no summary; keep the conversation as it is"
        raise ApiError(BROKEN, problem, code="empty_summary")
    return text.strip()
