"""Converts the messages of a conversation to the form that chat templates expect."""

import hashlib
import json
import re
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from paceline.core.errors import RequestError

# Types of parts that are images.
KINDS = ("image", "image_url", "input_image", "image_pil")
SHOWN: Mapping[str, str] = {"type": "image"}  # an image, as chat templates expect it


def is_image(part: object) -> bool:
    return isinstance(part, Mapping) and cast("Mapping[str, Any]", part).get("type") in KINDS


def source_of(part: Mapping[str, Any]) -> Any:
    """The source of an image: a URL, the bytes of a file, or an object of the caller."""
    for key in ("image_url", "image", "image_pil", "url"):
        if (found := part.get(key)) is not None:
            break
    else:
        raise RequestError(f"a message part of type {part['type']!r} has no image")
    if isinstance(found, Mapping):
        found = cast("Mapping[str, Any]", found).get("url")
        if not isinstance(found, str):
            raise RequestError("image_url of a message part has no url, a text")
    return found


def images_of(messages: Iterable[Mapping[str, Any]]) -> list[Any]:
    """The sources of the images of a conversation, in order."""
    found: list[Any] = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, list | tuple):
            parts = cast("Iterable[Any]", content)
            found += (source_of(part) for part in parts if is_image(part))
    return found


Message = Mapping[str, Any]

ROLES = {"developer": "system"}  # roles that templates do not know
SHORT_ID = re.compile("[a-zA-Z0-9]{9}")


@dataclass(frozen=True, slots=True)
class MessageForm:
    """The form of messages that a template expects."""

    none_content: bool = False  # a message of tool calls alone has the content none, not ""
    short_ids: bool = False  # ids of tool calls have nine letters and digits
    single_calls: bool = False  # a message has one tool call at most
    parts: bool = False  # content may be a list of parts, some of which are images
    strings: bool = True  # content may be a string


class CallArguments(dict[str, Any]):
    """The arguments of a tool call: an object, and JSON where a template adds it to text."""

    def __init__(self, arguments: Mapping[str, Any], text: str) -> None:
        super().__init__(arguments)
        self._text = text

    def __str__(self) -> str:
        return self._text

    def __add__(self, after: str) -> str:
        return self._text + after

    def __radd__(self, before: str) -> str:
        return before + self._text


def plain_messages(messages: Iterable[Message], form: MessageForm) -> list[dict[str, Any]]:
    changed = [plain(message, form) for message in messages]
    return one_call_each(changed) if form.single_calls else changed


def one_call_each(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same conversation, with each call in a message of its own, before its result."""
    arranged: list[dict[str, Any]] = []
    rest = deque(messages)
    while rest:
        message = rest.popleft()
        calls: list[dict[str, Any]] = message.get("tool_calls", [])
        if len(calls) <= 1:
            arranged.append(message)
            continue
        results: list[dict[str, Any]] = []
        while rest and rest[0]["role"] == "tool":
            results.append(rest.popleft())
        for call in calls:
            arranged.append({**message, "tool_calls": [call]})
            message = {**message, "content": ""}  # the first of them has the content
            found = (one for one in results if one.get("tool_call_id") == call.get("id"))
            if (result := next(found, None)) is not None:
                results.remove(result)
                arranged.append(result)
        arranged += results
    return arranged


def plain(message: Message, form: MessageForm) -> dict[str, Any]:
    """A message with its content as a string, and with the arguments of tool calls as objects.

    Clients send fields that they do not use as null, while templates ask whether they are there.
    """
    role = message.get("role")
    if not isinstance(role, str):
        raise RequestError("a message has no role, or its role is not a string")
    content = message.get("content")
    if content is None and role != "assistant":  # whose tool calls may be all it says
        raise RequestError(f"a message of the role {role!r} has no content")
    changed = {name: value for name, value in message.items() if value is not None}
    changed |= {"role": ROLES.get(role, role), "content": shown_content(content, form)}
    if "reasoning" in changed:  # its newer name
        changed.setdefault("reasoning_content", changed["reasoning"])
    if "tool_calls" in changed:
        calls = changed.pop("tool_calls")
        if not isinstance(calls, list):
            raise RequestError("tool_calls of a message must be a list")
        if calls:
            changed["tool_calls"] = [plain_call(call, form) for call in cast(list[object], calls)]
            if form.none_content and content is None:
                changed["content"] = None
    check_id(changed, "tool_call_id")
    return with_short_id(changed, "tool_call_id") if form.short_ids else changed


def check_id(given: Message, name: str) -> None:
    if not isinstance(given.get(name), str | None):
        raise RequestError(f"{name} of a tool call must be a string, not {given[name]!r:.80}")


def shown_content(content: object, form: MessageForm) -> str | list[Mapping[str, str]]:
    """A string, or parts if some are images or the template reads nothing else."""
    given: list[object] = [*cast("list[object]", content)] if is_list(content) else []
    has_images = any(map(is_image, given))
    if has_images and not form.parts:
        raise RequestError(
            "the chat template of this model does not show images; send text only, or use a model "
            "that reads images"
        )
    if not has_images and form.strings:
        return text_of(content)
    parts: list[object] = given or [{"type": "text", "text": text_of(content)}]
    return [SHOWN if is_image(part) else text_part(part_text(part)) for part in parts]


def is_list(content: object) -> bool:
    return isinstance(content, list)


def text_part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def text_of(content: object) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        kind = type(content).__name__
        raise RequestError(
            f"the content of a message has type {kind}; it must be a string or a list of parts"
        )
    return "\n".join(map(part_text, cast(list[object], content)))


def part_text(part: object) -> str:
    match part:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": str(kind)}:
            raise RequestError(
                f"a message part of type {kind!r} is not supported; use 'text' or 'image_url'"
            )
        case _:
            raise RequestError("a message part has no type")


def plain_call(call: object, form: MessageForm) -> dict[str, Any]:
    function = cast(Message, call).get("function") if isinstance(call, dict) else None
    name = cast(Message, function).get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise RequestError("a tool call of a message has no function with a name")
    fields = cast(Message, function)
    arguments = arguments_of(name, fields.get("arguments"))
    changed = {**cast(Message, call), "function": {**fields, "arguments": arguments}}
    check_id(changed, "id")
    return with_short_id(changed, "id") if form.short_ids else changed


def arguments_of(name: str, given: object) -> CallArguments:
    """Clients send arguments as JSON, which may be empty; some send an object."""
    if isinstance(given, dict):
        return CallArguments(cast(dict[str, Any], given), json.dumps(given, ensure_ascii=False))
    text = given if isinstance(given, str) and given.strip() else "{}"
    try:
        value = json.loads(text) if isinstance(given, str | None) else given
    except (ValueError, RecursionError) as error:
        raise RequestError(
            f"the arguments of a tool call are not JSON: {error} (a call of {name!r:.200})"
        ) from None
    if not isinstance(value, dict):
        raise RequestError(
            f"the arguments of a tool call must be a JSON object; those of a call of {name!r:.200} "
            f"have the type {type(value).__name__}"
        )
    return CallArguments(cast(dict[str, Any], value), text)


def with_short_id(fields: dict[str, Any], key: str) -> dict[str, Any]:
    """The same fields with an id of nine characters: the same one for the same id."""
    id = fields.get(key)
    if not isinstance(id, str) or SHORT_ID.fullmatch(id):
        return fields
    return {**fields, key: hashlib.sha256(id.encode(errors="replace")).hexdigest()[:9]}
