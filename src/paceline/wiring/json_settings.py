"""Settings that are mappings in Python and JSON on the command line."""

import json
from collections.abc import Mapping
from typing import Any

LIMIT = "limit_mm_per_prompt"


def as_json(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The same settings, with a limit that is a mapping written as JSON."""
    given = settings.get(LIMIT)
    return (
        {**settings, LIMIT: json.dumps(dict(given))} if isinstance(given, Mapping) else {**settings}
    )
