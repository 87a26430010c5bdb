"""Conversations that clients name by an id: found, read and changed in any process of a server."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, cast
from uuid import uuid4

from msgspec import json
from msgspec.structs import replace

from paceline.server.context import ServerContext
from paceline.server.errors import NOT_FOUND, TOO_LARGE, ApiError
from paceline.server.parse import unsupported
from paceline.server.responses.store import Item, StoredConversation
from paceline.server.schemas.responses import ResponseBody

Change = Literal["read", "append", "describe", "omit", "forget"]
ENDED = ("completed", "incomplete")  # responses that belong to a conversation


def changed_here(
    context: ServerContext, name: str, change: Change, given: str = ""
) -> StoredConversation | None:
    """A conversation of this process after a change, which `given` has as text; None: it has none.

    One that would be too large is left as it is. Call it on the event loop.
    """
    store = context.responses
    if (found := store.conversation(name)) is None or change == "read":
        return found
    match change:
        case "append":
            changed = found.followed_by(json.decode(given, type=list[dict[str, Any]]))
        case "describe":
            changed = replace(found, metadata=json.decode(given, type=dict[str, str]))
        case "omit":
            rest = {id: item for id, item in found.items.items() if id != given}
            changed = replace(found, items=rest)
        case "forget":
            store.remove(name)
            return found
    if changed.size > store.most_bytes:
        return found
    store.put(name, changed)
    return changed


async def conversation(
    context: ServerContext,
    name: str,
    change: Change = "read",
    given: str = "",
    param: str = "conversation_id",
) -> StoredConversation:
    """A conversation of this process or another, after a change. 404 if there is none."""
    if (here := changed_here(context, name, change, given)) is not None:
        return here
    answers = await context.peers.ask("conversation", (name, change, given))
    sent = next((sent for (sent,) in answers if sent), None)
    if sent is None:
        problem = f"Conversation with id {name!r} not found; it was deleted, or is stored no longer"
        raise ApiError(NOT_FOUND, problem, param=param)
    return StoredConversation.received(sent)


async def appended(context: ServerContext, name: str, items: Sequence[Item]) -> list[Item]:
    """Add items at the end of a conversation; returns them with their ids. 413 if they do not
    fit."""
    fresh = with_own_ids(items, {*(await conversation(context, name)).items})
    after = await conversation(context, name, "append", json.encode(fresh).decode())
    if not after.items.keys() >= {one["id"] for one in fresh}:
        raise too_large(context, "items")
    return fresh


def with_own_ids(items: Sequence[Item], known: set[str]) -> list[Item]:
    """The items, with another id for each whose id is known, or that of an item before it."""
    found: list[Item] = []
    for item in items:
        id = f"item-{uuid4().hex}" if item["id"] in known else item["id"]
        known.add(id)
        found.append({**item, "id": id})
    return found


def too_large(context: ServerContext, param: str) -> ApiError:
    most = context.responses.most_bytes
    problem = (
        f"the conversation would be larger than a store of {most} bytes; begin another one with "
        "the output of /v1/responses/compact, or raise --stored-response-bytes"
    )
    return ApiError(TOO_LARGE, problem, param=param)


def conversation_id(given: str | dict[str, Any] | None) -> str | None:
    """The id in the field of a request, which is a text or an object that has it."""
    found: object = given.get("id") if isinstance(given, dict) else given
    if given is not None and not isinstance(found, str):
        raise unsupported("conversation", "it must be an id, or an object with an id")
    return cast("str | None", found)


class Turn:
    """What a response adds to its conversation: its input and its output, when it has ended.

    A response that fails or is cancelled adds nothing; nor does one without a conversation.
    """

    def __init__(
        self,
        context: ServerContext,
        conversation: str | None,
        items: Sequence[Item],
        keep: Callable[[ResponseBody], None],
    ) -> None:
        self._context, self._conversation, self._input = context, conversation, items
        self._keep = keep
        self._ended: ResponseBody | None = None

    def keep(self, response: ResponseBody) -> None:
        self._keep(response)
        self._ended = response if response.status in ENDED else None

    async def add(self) -> None:
        """Add both; a conversation that was deleted meanwhile stays so."""
        if self._ended is None or self._conversation is None:
            return
        output = json.decode(json.encode(self._ended.output), type=list[dict[str, Any]])
        try:
            await appended(self._context, self._conversation, [*self._input, *output])
        except ApiError as error:
            if error.status_code != NOT_FOUND:
                raise
