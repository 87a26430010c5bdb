"""Routes of responses that are stored: read, continue, cancel and remove them."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Protocol

from fastapi import APIRouter, Query, Response

from paceline.server.context import ServerContext
from paceline.server.errors import BAD_REQUEST, ERRORS, ApiError
from paceline.server.parse import unsupported
from paceline.server.responses.background import EventResponse, cancelled, removed, stored
from paceline.server.responses.conversations import conversation, conversation_id
from paceline.server.responses.store import Item
from paceline.server.settings import ServerSettings

JSON = "application/json"
MOST_ITEMS = 100  # of a page
NOT_KEPT = "responses are not stored by this server (--enable-responses-store)"
SYNCHRONOUS = "Cannot cancel a synchronous response; only one with background can be cancelled"


def stored_response_routes(context: ServerContext) -> APIRouter:
    router = APIRouter(tags=["stored responses"], responses=ERRORS)

    @router.get("/v1/responses/{response_id}")
    async def retrieve_response(
        response_id: str,
        stream: bool = False,
        starting_after: Annotated[int | None, Query(ge=-1)] = None,
    ) -> Response:
        """A response, complete or so far; or, with `stream`, its events after the one with the
        number `starting_after`."""
        if stream:
            after = -1 if starting_after is None else starting_after
            return EventResponse(context, response_id, after)
        if starting_after is not None:
            raise unsupported("starting_after", "only events have numbers; set stream to true")
        return Response((await stored(context, response_id)).body, media_type=JSON)

    @router.get("/v1/responses/{response_id}/input_items")
    async def list_input_items(
        response_id: str,
        order: Literal["asc", "desc"] = "desc",
        limit: Annotated[int, Query(ge=1, le=MOST_ITEMS)] = 20,
        after: str | None = None,
    ) -> dict[str, Any]:
        """What preceded the output, also from earlier responses; the latest item first."""
        items = (await stored(context, response_id)).input_items
        return page(items if order == "asc" else items[::-1], limit, after)

    @router.post("/v1/responses/{response_id}/cancel")
    async def cancel_response(response_id: str) -> Response:
        """End a response that runs in the background; one that has ended is returned as it is."""
        found = await cancelled(context, response_id)
        if not found.background:
            raise ApiError(BAD_REQUEST, SYNCHRONOUS, param="response_id")
        return Response(found.body, media_type=JSON)

    @router.delete("/v1/responses/{response_id}")
    async def delete_response(response_id: str) -> dict[str, Any]:
        """Forget a response."""
        await removed(context, response_id)
        return {"id": response_id, "object": "response", "deleted": True}

    return router


def page(items: Sequence[Item], limit: int, after: str | None) -> dict[str, Any]:
    """The items after the one with the id `after`, or the first ones."""
    names: list[Any] = [item["id"] for item in items]
    if after is not None and after not in names:
        raise ApiError(BAD_REQUEST, f"after is {after!r}, which no item has", param="after")
    begin = 0 if after is None else names.index(after) + 1
    shown = items[begin : begin + limit]
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
        "has_more": begin + limit < len(items),
    }


class ContinuedBody(Protocol):
    """The fields of a request that say what precedes its input."""

    @property
    def previous_response_id(self) -> str | None: ...

    @property
    def conversation(self) -> str | dict[str, Any] | None: ...


def check_stored(settings: ServerSettings, body: object) -> None:
    """400 if the body needs what is stored, and nothing is."""
    if settings.enable_responses_store:
        return
    for name in ("store", "background", "previous_response_id", "conversation"):
        if getattr(body, name, None):
            raise unsupported(name, f"{NOT_KEPT}; remove {name}")


async def session_of(context: ServerContext, body: ContinuedBody, name: str) -> str:
    """The name of a conversation that the client has not named: its id, or that of its first
    response. `name` is the response to come."""
    if talk := conversation_id(body.conversation):
        return talk
    if (before := body.previous_response_id) is None:
        return name
    return (await stored(context, before, "previous_response_id")).session or before


async def items_before(context: ServerContext, body: ContinuedBody) -> list[Item]:
    """The items of a conversation, or those up to the end of a stored response."""
    name, talk = body.previous_response_id, conversation_id(body.conversation)
    if name is not None and talk is not None:
        problem = "it cannot be combined with conversation; remove one of them"
        raise unsupported("previous_response_id", problem)
    if talk is not None:
        return (await conversation(context, talk, param="conversation")).all_items
    if name is None:
        return []
    found = await stored(context, name, "previous_response_id")
    if found.status not in ("completed", "incomplete"):
        raise unsupported(
            "previous_response_id",
            f"the response {name!r} is {found.status}; only one that has ended can be continued",
        )
    return found.items
