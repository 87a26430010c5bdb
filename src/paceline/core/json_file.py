"""A file that holds one JSON object."""

import json
from pathlib import Path
from typing import Any, cast

from paceline.core.errors import ConfigError


def json_object(path: Path) -> dict[str, Any]:
    """Its fields. A ConfigError that names the file if it cannot be read or holds anything else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path} is not a JSON object")
    return cast(dict[str, Any], content)
