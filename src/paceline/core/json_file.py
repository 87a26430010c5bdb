"""A file that holds one JSON object."""

import json
from pathlib import Path
from typing import Any, cast

from paceline.core.errors import ConfigError

SHOWN = 30  # characters of a file that is wrong


def json_object(path: Path) -> dict[str, Any]:
    """Its fields. A ConfigError that names the file if it cannot be read or holds anything else."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not a text: byte {error.start} is not UTF-8") from None
    if not text.strip():
        raise ConfigError(f"{path} is empty; it must hold a JSON object")
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path} {fault(error)}") from None
    except RecursionError:
        raise ConfigError(f"{path} is nested too deeply") from None
    except ValueError as error:  # such as a number with thousands of digits
        raise ConfigError(f"{path} cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path} is not a JSON object")
    return cast(dict[str, Any], content)


def fault(error: json.JSONDecodeError) -> str:
    """Where a text stops being JSON."""
    rest = error.doc[error.pos :].strip()
    if not rest:
        return f"is not complete: its JSON ends in line {error.lineno}"
    shown = rest.splitlines()[0][:SHOWN]
    return f"is not JSON at line {error.lineno}, column {error.colno}: {shown!r}"
