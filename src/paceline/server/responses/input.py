"""The input of /v1/responses as the messages of a chat."""

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from typing import Any, cast

from paceline.server.parse import unsupported
from paceline.text.chat_messages import is_image

COMPACTION = "paceline-compaction-1:"  # before the encoded content of a compaction
SUMMARY = "Summary of the conversation so far:"
TEXTS = ("input_text", "output_text", "text")
Item = Mapping[str, Any]


def input_items(given: str | list[dict[str, Any]], response: str) -> list[Item]:
    """The input of a response as items that have ids, with texts as parts."""
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    for item in items:
        if not isinstance(item.get("id"), str | None):
            raise unsupported("input", f"the id of an item is {item['id']!r}; it must be a string")
    return [
        with_parts({"type": "message", **item}, f"in-{response}-{at}")
        for at, item in enumerate(items)
    ]


def with_parts(item: Item, id: str) -> Item:
    content = item.get("content")
    if item["type"] != "message" or not isinstance(content, str):
        return {**item, "id": item.get("id") or id}
    kind = "output_text" if item.get("role") == "assistant" else "input_text"
    parts = [{"type": kind, "text": content}]
    return {**item, "id": item.get("id") or id, "content": parts}


def messages(
    given: str | list[dict[str, Any]], earlier: Sequence[Item] = ()
) -> list[dict[str, Any]]:
    """Reasoning, a message and calls of the assistant that follow each other are one message.

    `earlier` has the items of an earlier response and of its input.
    """
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    if not given and not earlier:
        raise unsupported("input", "it is empty; give a text or at least one message")
    found: list[dict[str, Any]] = []
    for item in (*earlier, *given):
        added = message(item)
        if item.get("type") == "compaction":
            found = joined_users(found)
        if not found or not joins(found[-1], added):
            found.append(added)
        elif "tool_calls" in added:
            found[-1].setdefault("tool_calls", []).extend(added["tool_calls"])
        else:
            found[-1] = {**found[-1], **added}
    return found


def joined_users(talk: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages of the user at the end, which a compaction keeps, as one: roles alternate in
    some templates."""
    at = len(talk)
    while at and talk[at - 1]["role"] == "user" and isinstance(talk[at - 1]["content"], str):
        at -= 1
    texts = [one["content"] for one in talk[at:]]
    return [*talk[:at], {"role": "user", "content": "\n\n".join(texts)}] if texts else talk


def joins(last: Item, added: Item) -> bool:
    """Whether two items are of one message: each kind once, in order, and any number of calls."""
    order = [key for key in ("reasoning_content", "content", "tool_calls") if key in added]
    if last["role"] != "assistant" or added["role"] != "assistant" or len(order) != 1:
        return False
    match order[0]:
        case "tool_calls":
            return True
        case "content":
            return "content" not in last and "tool_calls" not in last
        case _:
            return False


def message(item: Item) -> dict[str, Any]:
    kind = item.get("type", "message")
    match kind:
        case "message" if isinstance(role := item.get("role"), str):
            return {"role": role, "content": content_of(item.get("content"))}
        case "function_call":
            return {"role": "assistant", "tool_calls": [call_of(item)]}
        case "function_call_output":
            id, output = text_field(item, "call_id"), text_of(item.get("output"))
            return {"role": "tool", "tool_call_id": id, "content": output}
        case "compaction":
            return {"role": "assistant", "content": f"{SUMMARY}\n\n{summary_of(item)}"}
        case "reasoning":
            return {"role": "assistant", "reasoning_content": reasoning_of(item)}
        case _:
            raise unsupported(
                "input",
                f"an item has the type {kind!r:.200}; it must be a message with a role, "
                "function_call, function_call_output, reasoning or compaction",
            )


def call_of(item: Item) -> dict[str, Any]:
    function = {name: text_field(item, name) for name in ("name", "arguments")}
    return {"id": text_field(item, "call_id"), "type": "function", "function": function}


def compaction(id: str, summary: str) -> Item:
    """A summary as an item. It is encoded, not encrypted: any server of ours can read it."""
    encoded = urlsafe_b64encode(json.dumps({"summary": summary}).encode()).decode()
    return {"type": "compaction", "id": id, "encrypted_content": COMPACTION + encoded}


def summary_of(item: Item) -> str:
    content = text_field(item, "encrypted_content")
    try:
        if content.startswith(COMPACTION):
            found: Any = json.loads(urlsafe_b64decode(content.removeprefix(COMPACTION)))
            return str(found["summary"])
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise unsupported(
        "input",
        "encrypted_content of a compaction cannot be read; send back an item of "
        "/v1/responses/compact of this server as it was",
    )


def reasoning_of(item: Item) -> str:
    """Its text, or else its summary."""
    parts: object = item.get("content") or item.get("summary") or ()
    if not isinstance(parts, list | tuple):
        raise unsupported("input", "the content of reasoning must be a list of parts")
    return "".join(text_field(one, "text") for one in cast("Sequence[Any]", parts))


def text_field(item: Any, name: str) -> str:
    found = cast(Item, item).get(name) if isinstance(item, Mapping) else None
    if not isinstance(found, str):
        kind = cast(Item, item).get("type") if isinstance(item, Mapping) else None
        raise unsupported("input", f"an item of the type {kind!r:.200} needs {name}, a text")
    return found


def content_of(content: Any) -> str | list[dict[str, Any]]:
    """A text, or parts if some are images."""
    parts: list[Any] = [*cast("list[Any]", content)] if isinstance(content, list) else []
    if not any(map(is_image, parts)):
        return text_of(content)
    return [
        {"type": "image_url", "image_url": image_url(part)}
        if is_image(part)
        else {"type": "text", "text": part_text(part)}
        for part in parts
    ]


def image_url(part: Item) -> str:
    found = part.get("image_url")
    if not isinstance(found, str):
        raise unsupported("input", "an input_image needs image_url, a text; files are not stored")
    return found


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
            "input",
            f"a part of a message has the type {found.get('type')!r}; it must be input_text or "
            "input_image",
        )
    return text
