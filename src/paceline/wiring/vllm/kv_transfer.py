"""vLLM's kv_transfer_config and our `role`, as settings of a connector."""

import json
from collections.abc import Mapping
from typing import Any

from paceline.core.errors import ConfigError, nearest
from paceline.core.settings.features import ConnectorConfig
from paceline.wiring.vllm.values import mapping_in

SETTING = "kv_transfer_config"
OWN = ("kv_role", "engine_id", "kv_connector_extra_config")  # they stay in it
SETTINGS = ("kv_connector", "kv_load_failure_policy", "kv_load_timeout_s")  # they are ours too
# Names of vLLM that have no setting here: each connector has options of its own.
UNUSED = ("kv_rank", "kv_parallel_size", "kv_ip", "kv_port", "kv_buffer_device", "kv_buffer_size")


def spelled_out(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with those of `kv_transfer_config` that are settings of ours, and its text as
    JSON."""
    given = settings.get(SETTING)
    if given is None or given == "":
        return {name: value for name, value in settings.items() if name != SETTING}
    content = content_of(given)
    found = {name: content[name] for name in SETTINGS if content.get(name) is not None}
    for name, value in found.items():
        if name in settings and settings[name] != value:
            raise ConfigError(
                f"{name} is {settings[name]!r}, and {value!r} in {SETTING}; set one of them"
            )
    text = given if isinstance(given, str) else json.dumps(content)
    return {**settings, **found, SETTING: text}


def content_of(given: Any) -> dict[str, Any]:
    """The mapping, from a mapping or from JSON. ConfigError if a name is unknown."""
    found = mapping_in(SETTING, given, '{"kv_connector": "host", "kv_role": "kv_both"}')
    for name in found:
        if name not in (*OWN, *SETTINGS, *UNUSED):
            hint = nearest(name, (*OWN, *SETTINGS))
            raise ConfigError(f"{SETTING} has an unknown name {name!r}{hint}")
    return found


def connector_config(kv_connector: str, kv_transfer_config: str) -> ConnectorConfig:
    """The settings of a connector."""
    content = content_of(kv_transfer_config) if kv_transfer_config else {}
    given = {name: content[name] for name in OWN if content.get(name) is not None}
    if given and not kv_connector:
        raise ConfigError(f"{SETTING} names no kv_connector")
    return ConnectorConfig(kv_connector, **given)


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
