"""The messages of Anthropic's API as the messages of a chat."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, cast

from paceline.server.parse import unsupported

Block = Mapping[str, Any]


def chat_messages(given: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Blocks of thinking and tool use are fields of a message; results are messages."""
    found: list[dict[str, Any]] = []
    for message in given:
        content = message.get("content")
        if not isinstance(content, list):
            found.append(dict(message))
        elif message.get("role") == "assistant":
            found.append(from_assistant(cast("list[Any]", content)))
        else:
            found += from_user(message, cast("list[Any]", content))
    return found


def from_assistant(blocks: list[Any]) -> dict[str, Any]:
    texts: list[Any] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for block in blocks:
        match block:
            case {"type": "thinking", "thinking": str(thought)}:
                thoughts.append(thought)
            case {"type": "redacted_thinking"}:
                raise unsupported("messages", "redacted thinking cannot be read; remove the block")
            case {"type": "tool_use", "id": str(id), "name": str(name), "input": dict()}:
                arguments = json.dumps(block["input"], ensure_ascii=False)
                function = {"name": name, "arguments": arguments}
                calls.append({"id": id, "type": "function", "function": function})
            case {"type": "tool_use"}:
                raise unsupported("messages", "a block of tool_use needs id, name and input")
            case _:
                texts.append(block)  # the chat template refuses what is no text
    fields = {"reasoning_content": "\n".join(thoughts), "tool_calls": calls}
    given = {name: value for name, value in fields.items() if value}
    return {"role": "assistant", "content": texts or None, **given}


def from_user(message: Mapping[str, Any], blocks: list[Any]) -> list[dict[str, Any]]:
    """Results come first: they answer the message before."""
    results = [block for block in blocks if is_result(block)]
    rest = [shown(block) for block in blocks if not is_result(block)]
    said = [{**message, "content": rest}] if rest or not results else []
    return [*map(result_of, results), *said]


def shown(block: Any) -> Any:
    """A block as a part of a chat message: an image is a URL there."""
    match block:
        case {
            "type": "image",
            "source": {"type": "base64", "media_type": str(kind), "data": str(data)},
        }:
            return {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{data}"}}
        case {"type": "image", "source": {"type": "url", "url": str(url)}}:
            return {"type": "image_url", "image_url": {"url": url}}
        case {"type": "image"}:
            raise unsupported(
                "messages", "the source of an image must be base64 with media_type and data, or url"
            )
        case _:
            return block


def is_result(block: Any) -> bool:
    return isinstance(block, dict) and cast(Block, block).get("type") == "tool_result"


def result_of(block: Block) -> dict[str, Any]:
    id = block.get("tool_use_id")
    if not isinstance(id, str):
        raise unsupported("messages", "a block of tool_result needs tool_use_id, a text")
    content = block.get("content")
    return {"role": "tool", "tool_call_id": id, "content": "" if content is None else content}
