"""`role`: a part of each request, as settings of the connector that hands KV to other engines."""

import json
from collections.abc import Mapping
from typing import Any

from paceline.core.errors import ConfigError
from paceline.wiring.kv_transfer_config import SETTING, content_of

KV_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}
CONNECTOR = "nixl"


def with_role(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with a connector for the role, unless they name one."""
    role = settings.get("role", "both")
    if role not in KV_ROLES:  # a wrong one is refused with the other settings
        return dict(settings)
    given = settings.get(SETTING)
    content = content_of(given) if given else {}
    if content.get("kv_role", KV_ROLES[role]) != KV_ROLES[role]:
        raise ConfigError(
            f"role is {role!r}, and kv_role is {content['kv_role']!r} in {SETTING}; set one of them"
        )
    named = content.get("kv_connector") or settings.get("kv_connector") or CONNECTOR
    content |= {"kv_role": KV_ROLES[role], "kv_connector": named}
    return {**settings, SETTING: json.dumps(content)}
