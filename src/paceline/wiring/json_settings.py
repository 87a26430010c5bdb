"""Settings that are mappings in Python and JSON on the command line."""

import json
from collections.abc import Mapping
from typing import Any, cast

from paceline.core.errors import ConfigError

LIMIT, EVENTS = "limit_mm_per_prompt", "kv_events_config"


def as_json(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The same settings, with mappings written as JSON."""
    found = dict(settings)
    for name in (LIMIT, EVENTS):
        if isinstance(given := found.get(name), Mapping):
            found[name] = json.dumps(dict(cast("Mapping[str, Any]", given)))
    return found


def mapping_in(name: str, given: Any, example: str) -> dict[str, Any]:
    """The mapping of a setting, which is a mapping or JSON."""
    content = given
    if isinstance(given, str):
        try:
            content = json.loads(given)
        except ValueError as error:
            raise ConfigError(f"{name} is {given!r:.200}, which is no JSON: {error}") from None
    if not isinstance(content, Mapping):
        raise ConfigError(f"{name} is {given!r:.200}; it must be a mapping, such as {example}")
    return {str(key): value for key, value in cast("Mapping[Any, Any]", content).items()}
