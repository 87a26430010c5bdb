"""POST /v1/responses/compact: a long conversation as its messages of the user and a summary."""

from collections.abc import Sequence
from time import time
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import Field

from paceline.engine.api import GenerationRequest, RequestOutput
from paceline.engine.sampling_rules import SamplingRules
from paceline.server.body import parsed
from paceline.server.client_headers import ClientHeaders
from paceline.server.context import ServerContext
from paceline.server.errors import BROKEN, ApiError
from paceline.server.replies.generation_response import GenerationJob, GenerationResponse
from paceline.server.replies.reply_parsing import ReplyParsing, ReplyReader
from paceline.server.replies.response_writer import WholeWriter
from paceline.server.responses.input import Item, compaction, input_items, messages
from paceline.server.routes.stored_responses import check_stored, items_before
from paceline.server.schemas.completions import encode
from paceline.server.schemas.constraints import RequestBody
from paceline.server.schemas.openapi import ERRORS
from paceline.server.schemas.requests import Messages
from paceline.server.schemas.responses import usage_of
from paceline.tools.calls import ContentDelta

SUMMARY_TOKENS = 1024  # at most; fewer if the context has no room for them
KEPT_ROLES = ("user", "system", "developer")
TASK = (
    "Summarize this conversation, so that it can be continued by someone who has only the summary. "
    "Keep facts, names, numbers, decisions, results of tools and open questions. "
    "Write nothing but the summary."
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
