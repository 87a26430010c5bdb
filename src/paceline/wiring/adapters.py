"""Adapters for a model: their settings, and those that are loaded at start."""

from typing import Any

from paceline.core.adapter import AdapterConfig, parse_modules
from paceline.core.errors import ConfigError, RequestError
from paceline.engine.core.adapters import AdapterHost, AdapterRequests
from paceline.wiring.settings import pop_settings

USUAL = 1  # different adapters of running sequences, as in vLLM


def pop_adapters(settings: dict[str, Any]) -> AdapterConfig:
    """Remove the settings of adapters from those that were given, and complete `max_loras`, which
    is one of the scheduler."""
    config: AdapterConfig = pop_settings(AdapterConfig, settings)
    if config.enable_lora and not settings.get("max_loras"):
        settings["max_loras"] = USUAL
    return config


def served_adapters(
    config: AdapterConfig, max_loras: int, host: AdapterHost | None
) -> AdapterRequests | None:
    """None without `enable_lora`. ConfigError if an adapter cannot be loaded."""
    if host is None:
        return None
    adapters = AdapterRequests(host, config.kept(max_loras))
    try:
        adapters.load_all(parse_modules(config.lora_modules))
    except RequestError as error:
        raise ConfigError(f"lora_modules: {error}") from None
    return adapters
