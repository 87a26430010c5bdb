"""Settings that are mappings with names of vLLM: speculation, KV transfer and KV events."""

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from paceline.core.errors import ConfigError, nearest
from paceline.core.settings.features import ConnectorConfig, KVEventsConfig, SpeculationConfig
from paceline.wiring.vllm.values import EVENTS, mapping_in

SPECULATION, TRANSFER = "speculative_config", "kv_transfer_config"

SPECULATION_EXAMPLE = '{"method": "ngram", "num_speculative_tokens": 4}'
SPECULATION_DEFAULTS = SpeculationConfig()
# Our setting for each name of vLLM.
SPECULATION_NAMES = {
    "method": "proposer",
    "model": "speculative_model",
    "num_speculative_tokens": "num_speculative_tokens",
    "prompt_lookup_min": "prompt_lookup_min",
    "prompt_lookup_max": "prompt_lookup_max",
    "suffix_decoding_max_tree_depth": "suffix_decoding_max_tree_depth",
    "suffix_decoding_max_cached_requests": "suffix_decoding_max_cached_requests",
    "suffix_decoding_max_spec_factor": "suffix_decoding_max_spec_factor",
    "suffix_decoding_min_token_prob": "suffix_decoding_min_token_prob",
}
# Names of vLLM that have no setting here, and the values that change nothing.
HARMLESS: dict[str, tuple[Any, ...]] = {
    "draft_tensor_parallel_size": (None, 1),
    "enforce_eager": (None, False),
    "disable_padded_drafter_batch": (None, False, True),
}
INSTEAD = {
    "disable_by_batch_size": "drafts that do not pay are left out; to set a limit, use "
    "speculation_max_batch_tokens",
    "speculative_token_tree": "drafts of a sequence are a chain; remove it",
}

FIELDS = ("kv_role", "engine_id", "kv_connector_extra_config")  # they stay in it
SETTINGS = ("kv_connector", "kv_load_failure_policy", "kv_load_timeout_s")  # they are ours too
# Names of vLLM that have no setting here: each connector has options of its own.
UNUSED = ("kv_rank", "kv_parallel_size", "kv_ip", "kv_port", "kv_buffer_device", "kv_buffer_size")
KV_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}
CONNECTOR = "nixl"  # of a role, by default

EVENTS_EXAMPLE = '{"enable_kv_cache_events": true, "endpoint": "tcp://*:5557"}'
EVENTS_NAMES = [one.name for one in fields(KVEventsConfig)]


def spelled_out(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with those that `role`, `speculative_config` and `kv_transfer_config` stand for, and
    the text of both as JSON."""
    settings = spelled(with_role(settings), TRANSFER, transfer_settings)
    return spelled(settings, SPECULATION, speculation_settings)


def spelled(
    settings: Mapping[str, Any], config: str, read: Callable[[Any], dict[str, Any]]
) -> dict[str, Any]:
    """Settings with those that `read` finds in a mapping, and the text of the mapping as JSON."""
    given = settings.get(config)
    if given is None or given == "":
        return {name: value for name, value in settings.items() if name != config}
    found = read(given)
    for name, value in found.items():
        if name in settings and settings[name] != value:
            raise ConfigError(
                f"{name} is {settings[name]!r}, and {value!r} in {config}; set one of them"
            )
    text = given if isinstance(given, str) else json.dumps(dict(given))
    return {**settings, **found, config: text}


def speculation_settings(given: Any) -> dict[str, Any]:
    """Our settings; ConfigError if a name is unknown or one is missing."""
    found: dict[str, Any] = {}
    for name, value in mapping_in(SPECULATION, given, SPECULATION_EXAMPLE).items():
        if name in SPECULATION_NAMES:
            if value is not None:
                found[SPECULATION_NAMES[name]] = value
        elif name not in HARMLESS or value not in HARMLESS[name]:
            raise ConfigError(complaint(name, value))
    if "proposer" not in found:
        if "speculative_model" not in found:
            raise ConfigError(f"{SPECULATION} has neither a method nor a model; add one of them")
        found["proposer"] = "draft_model"
    return completed(found)


def completed(found: dict[str, Any]) -> dict[str, Any]:
    """Settings that follow from those given, as in vLLM; defaults that would not go with them."""
    more: dict[str, Any] = {}
    if found["proposer"] == "suffix":
        more["num_speculative_tokens"] = SPECULATION_DEFAULTS.suffix_decoding_max_tree_depth
        if "suffix_decoding_max_tree_depth" in found:
            more["num_speculative_tokens"] = found["suffix_decoding_max_tree_depth"]
    least, most = found.get("prompt_lookup_min"), found.get("prompt_lookup_max")
    if isinstance(most, int):
        more["prompt_lookup_min"] = min(SPECULATION_DEFAULTS.prompt_lookup_min, most)
    if isinstance(least, int):
        more["prompt_lookup_max"] = max(SPECULATION_DEFAULTS.prompt_lookup_max, least)
    if not (more | found).get("num_speculative_tokens"):
        raise ConfigError(f"{SPECULATION} has no num_speculative_tokens; set it to 1 or more")
    return more | found


def complaint(name: str, value: Any) -> str:
    if name in HARMLESS:
        allowed = " or ".join(json.dumps(one) for one in HARMLESS[name] if one is not None)
        return f"{name} in {SPECULATION} is {value!r}; only {allowed} is supported"
    if name in INSTEAD:
        return f"{name} in {SPECULATION} is not supported: {INSTEAD[name]}"
    hint = nearest(name, SPECULATION_NAMES, f"; it may have {', '.join(SPECULATION_NAMES)}")
    return f"{SPECULATION} has an unknown name {name!r}{hint}"


def transfer_settings(given: Any) -> dict[str, Any]:
    """The fields of `kv_transfer_config` that are settings here."""
    content = content_of(given)
    return {name: content[name] for name in SETTINGS if content.get(name) is not None}


def content_of(given: Any) -> dict[str, Any]:
    """The mapping, from a mapping or from JSON. ConfigError if a name is unknown."""
    found = mapping_in(TRANSFER, given, '{"kv_connector": "host", "kv_role": "kv_both"}')
    for name in found:
        if name not in (*FIELDS, *SETTINGS, *UNUSED):
            hint = nearest(name, (*FIELDS, *SETTINGS))
            raise ConfigError(f"{TRANSFER} has an unknown name {name!r}{hint}")
    return found


def connector_config(kv_connector: str, kv_transfer_config: str) -> ConnectorConfig:
    """The settings of a connector."""
    content = content_of(kv_transfer_config) if kv_transfer_config else {}
    given = {name: content[name] for name in FIELDS if content.get(name) is not None}
    if given and not kv_connector:
        raise ConfigError(f"{TRANSFER} names no kv_connector")
    return ConnectorConfig(kv_connector, **given)


def with_role(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with a connector for the role, unless they name one."""
    role = settings.get("role", "both")
    if role not in KV_ROLES:  # a wrong one is refused with the other settings
        return dict(settings)
    given = settings.get(TRANSFER)
    content = content_of(given) if given else {}
    if content.get("kv_role", KV_ROLES[role]) != KV_ROLES[role]:
        raise ConfigError(
            f"role is {role!r}, and kv_role is {content['kv_role']!r} in {TRANSFER}; "
            "set one of them"
        )
    named = content.get("kv_connector") or settings.get("kv_connector") or CONNECTOR
    content |= {"kv_role": KV_ROLES[role], "kv_connector": named}
    return {**settings, TRANSFER: json.dumps(content)}


def kv_events_in(text: str) -> KVEventsConfig | None:
    """None if events are off. ConfigError if something is wrong, also while they are off."""
    if not text:
        return None
    given = mapping_in(EVENTS, text, EVENTS_EXAMPLE)
    for name in given:
        if name not in EVENTS_NAMES:
            hint = nearest(name, EVENTS_NAMES, f"; it may have {', '.join(EVENTS_NAMES)}")
            raise ConfigError(f"{EVENTS} has an unknown name {name!r}{hint}")
    try:  # null stands for a default, as in vLLM
        config = KVEventsConfig(**{name: one for name, one in given.items() if one is not None})
    except ConfigError as error:
        raise ConfigError(f"{EVENTS}: {error}") from None
    return config if config.is_on else None
