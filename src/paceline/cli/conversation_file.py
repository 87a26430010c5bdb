"""Conversations in files: the body of a chat request, with messages and sampling parameters."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from paceline.cli.sampling import KINDS, checked
from paceline.core.errors import RequestError
from paceline.core.system.files import json_object

ROLES = ("system", "user", "assistant")
Messages = list[dict[str, str]]


def save(path: Path, messages: Sequence[Mapping[str, str]], params: Mapping[str, Any]) -> None:
    """RequestError if the file cannot be written."""
    content = json.dumps({"messages": messages, **params}, indent=1, ensure_ascii=False)
    try:
        path.write_text(content + "\n", encoding="utf-8")
    except OSError as error:
        raise RequestError(f"{path} cannot be written: {error.strerror}") from None


def load(path: Path) -> tuple[Messages, dict[str, Any]]:
    """Messages and parameters of a file; PacelineError if it has something else."""
    content = json_object(path)
    messages = content.pop("messages", None)
    if not isinstance(messages, list) or not all(map(is_message, cast("list[Any]", messages))):
        raise RequestError(f"{path} has no conversation: messages must have a role and a content")
    if unknown := [name for name in content if name not in KINDS]:
        raise RequestError(f"{path} has an unknown parameter {unknown[0]!r}")
    return cast("Messages", messages), checked(content)


def is_message(value: Any) -> bool:
    match value:
        case {"role": str(role), "content": str()}:
            return role in ROLES and len(cast("dict[str, Any]", value)) == len(("role", "content"))
        case _:
            return False
