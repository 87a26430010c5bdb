"""Reads vLLM's `kv_events_config`: where KV events are published."""

from dataclasses import fields
from typing import Any

from paceline.core.errors import ConfigError, nearest
from paceline.core.settings.checks import require
from paceline.core.settings.config import CacheConfig
from paceline.core.settings.features import KVEventsConfig
from paceline.wiring.settings import part_of
from paceline.wiring.vllm.values import EVENTS, mapping_in

EXAMPLE = '{"enable_kv_cache_events": true, "endpoint": "tcp://*:5557"}'
NAMES = [one.name for one in fields(KVEventsConfig)]


def kv_events_in(text: str) -> KVEventsConfig | None:
    """None if events are off. ConfigError if something is wrong, also while they are off."""
    if not text:
        return None
    given = mapping_in(EVENTS, text, EXAMPLE)
    for name in given:
        if name not in NAMES:
            hint = nearest(name, NAMES, f"; it may have {', '.join(NAMES)}")
            raise ConfigError(f"{EVENTS} has an unknown name {name!r}{hint}")
    try:  # null stands for a default, as in vLLM
        config = KVEventsConfig(**{name: one for name, one in given.items() if one is not None})
    except ConfigError as error:
        raise ConfigError(f"{EVENTS}: {error}") from None
    return config if config.is_on else None


def record_events(settings: dict[str, Any]) -> None:
    """Let the scheduler record events."""
    require(
        part_of(CacheConfig, settings).enable_prefix_caching,
        f"{EVENTS} reports cached prefixes, which needs enable_prefix_caching",
    )
    settings["enable_kv_cache_events"] = True
