"""Routes of conversations: made, read, described and deleted, and their items."""

from time import time
from typing import Annotated, Any, Literal
from uuid import uuid4

from fastapi import APIRouter, Query, Request
from msgspec import json
from pydantic import Field

from paceline.server.body import parsed
from paceline.server.context import ServerContext
from paceline.server.errors import BAD_REQUEST, ERRORS, NOT_FOUND, ApiError
from paceline.server.parse import check_text
from paceline.server.responses.conversations import appended, conversation, too_large, with_own_ids
from paceline.server.responses.input import input_items, messages
from paceline.server.responses.store import Item, StoredConversation
from paceline.server.routes.stored_responses import MOST_ITEMS, NOT_KEPT, page
from paceline.server.schemas.constraints import RequestBody, Words
from paceline.server.schemas.requests import Messages


class ConversationRequest(RequestBody):
    """A new conversation."""

    items: Messages | None = Field(None, description="messages and calls that it begins with")
    metadata: Words | None = None


class DescribeRequest(RequestBody):
    """New metadata, instead of the old."""

    metadata: Words


class ItemsRequest(RequestBody):
    """Items to add at the end of a conversation."""

    items: Annotated[Messages, Field(min_length=1)]


def conversation_routes(context: ServerContext) -> APIRouter:
    router = APIRouter(tags=["conversations"], responses=ERRORS, route_class=context.body_route)

    @router.post("/v1/conversations")
    async def create_conversation(body: ConversationRequest, request: Request) -> dict[str, Any]:
        """Begin a conversation, which later requests name in their field conversation."""
        if not context.settings.enable_responses_store:
            raise ApiError(BAD_REQUEST, NOT_KEPT)
        check_text("metadata", body.metadata)
        items = await parsed(request, checked_items, body.items or [])
        made = StoredConversation(f"conv_{uuid4().hex}", int(time()), body.metadata or {}, {})
        made = made.followed_by(with_own_ids(items, set()))
        if not context.responses.put(made.id, made):
            raise too_large(context, "items")
        return shown(made)

    @router.get("/v1/conversations/{conversation_id}")
    async def retrieve_conversation(conversation_id: str) -> dict[str, Any]:
        return shown(await conversation(context, conversation_id))

    @router.post("/v1/conversations/{conversation_id}")
    async def update_conversation(conversation_id: str, body: DescribeRequest) -> dict[str, Any]:
        """Replace its metadata."""
        check_text("metadata", body.metadata)
        given = json.encode(body.metadata).decode()
        return shown(await conversation(context, conversation_id, "describe", given))

    @router.delete("/v1/conversations/{conversation_id}")
    async def delete_conversation(conversation_id: str) -> dict[str, Any]:
        """Forget a conversation and its items. Responses that were made in it stay."""
        await conversation(context, conversation_id, "forget")
        return {"id": conversation_id, "object": "conversation.deleted", "deleted": True}

    return router


def item_routes(context: ServerContext) -> APIRouter:
    router = APIRouter(tags=["conversations"], responses=ERRORS, route_class=context.body_route)

    @router.post("/v1/conversations/{conversation_id}/items")
    async def create_items(
        conversation_id: str, body: ItemsRequest, request: Request
    ) -> dict[str, Any]:
        """Add items at the end."""
        items = await parsed(request, checked_items, body.items)
        added = await appended(context, conversation_id, items)
        return page(added, len(added), None)

    @router.get("/v1/conversations/{conversation_id}/items")
    async def list_items(
        conversation_id: str,
        order: Literal["asc", "desc"] = "desc",
        limit: Annotated[int, Query(ge=1, le=MOST_ITEMS)] = 20,
        after: str | None = None,
    ) -> dict[str, Any]:
        """Its items, the latest first."""
        items = (await conversation(context, conversation_id)).all_items
        return page(items if order == "asc" else items[::-1], limit, after)

    @router.get("/v1/conversations/{conversation_id}/items/{item_id}")
    async def retrieve_item(conversation_id: str, item_id: str) -> dict[str, Any]:
        found = await conversation(context, conversation_id)
        check_item(found, item_id)
        return json.decode(found.items[item_id])

    @router.delete("/v1/conversations/{conversation_id}/items/{item_id}")
    async def delete_item(conversation_id: str, item_id: str) -> dict[str, Any]:
        """Remove an item; returns the conversation."""
        check_item(await conversation(context, conversation_id), item_id)
        return shown(await conversation(context, conversation_id, "omit", item_id))

    return router


def shown(found: StoredConversation) -> dict[str, Any]:
    return {
        "id": found.id,
        "object": "conversation",
        "created_at": found.created_at,
        "metadata": found.metadata,
    }


def checked_items(given: list[dict[str, Any]]) -> list[Item]:
    """Items with ids, with texts as parts. 400 if a response could not have them as input."""
    try:
        if given:
            messages(given)
    except ApiError as error:
        problem = error.detail.replace("input", "items", 1)
        raise ApiError(error.status_code, problem, param="items") from None
    items: list[Item] = [
        {"status": "completed", **item} for item in input_items(given, uuid4().hex)
    ]
    check_text("items", items)
    return items


def check_item(found: StoredConversation, item_id: str) -> None:
    if item_id not in found.items:
        problem = f"Item with id {item_id!r} not found in conversation {found.id!r}"
        raise ApiError(NOT_FOUND, problem, param="item_id")
