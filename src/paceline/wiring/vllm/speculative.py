"""Reads vLLM's `speculative_config`: the settings of speculation in one mapping."""

import json
from collections.abc import Mapping
from typing import Any

from paceline.core.errors import ConfigError, nearest
from paceline.core.settings.features import SpeculationConfig
from paceline.wiring.vllm.values import mapping_in

SETTING = "speculative_config"
EXAMPLE = '{"method": "ngram", "num_speculative_tokens": 4}'
DEFAULTS = SpeculationConfig()
# Our setting for each name of vLLM.
NAMES = {
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


def spelled_out(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with those of `speculative_config` under our names, and its text as JSON."""
    given = settings.get(SETTING)
    if given is None or given == "":
        return {name: value for name, value in settings.items() if name != SETTING}
    found = settings_of(mapping_in(SETTING, given, EXAMPLE))
    for name, value in found.items():
        if name in settings and settings[name] != value:
            raise ConfigError(
                f"{name} is {settings[name]!r}, and {value!r} in {SETTING}; set one of them"
            )
    text = given if isinstance(given, str) else json.dumps(given)
    return {**settings, **found, SETTING: text}


def settings_of(content: Mapping[str, Any]) -> dict[str, Any]:
    """Our settings; ConfigError if a name is unknown or one is missing."""
    found: dict[str, Any] = {}
    for name, value in content.items():
        if name in NAMES:
            if value is not None:
                found[NAMES[name]] = value
        elif name not in HARMLESS or value not in HARMLESS[name]:
            raise ConfigError(complaint(name, value))
    if "proposer" not in found:
        if "speculative_model" not in found:
            raise ConfigError(f"{SETTING} has neither a method nor a model; add one of them")
        found["proposer"] = "draft_model"
    return completed(found)


def completed(found: dict[str, Any]) -> dict[str, Any]:
    """Settings that follow from those given, as in vLLM; defaults that would not go with them."""
    more: dict[str, Any] = {}
    if found["proposer"] == "suffix":
        more["num_speculative_tokens"] = DEFAULTS.suffix_decoding_max_tree_depth
        if "suffix_decoding_max_tree_depth" in found:
            more["num_speculative_tokens"] = found["suffix_decoding_max_tree_depth"]
    least, most = found.get("prompt_lookup_min"), found.get("prompt_lookup_max")
    if isinstance(most, int):
        more["prompt_lookup_min"] = min(DEFAULTS.prompt_lookup_min, most)
    if isinstance(least, int):
        more["prompt_lookup_max"] = max(DEFAULTS.prompt_lookup_max, least)
    if not (more | found).get("num_speculative_tokens"):
        raise ConfigError(f"{SETTING} has no num_speculative_tokens; set it to 1 or more")
    return more | found


def complaint(name: str, value: Any) -> str:
    if name in HARMLESS:
        allowed = " or ".join(json.dumps(one) for one in HARMLESS[name] if one is not None)
        return f"{name} in {SETTING} is {value!r}; only {allowed} is supported"
    if name in INSTEAD:
        return f"{name} in {SETTING} is not supported: {INSTEAD[name]}"
    hint = nearest(name, NAMES, f"; it may have {', '.join(NAMES)}")
    return f"{SETTING} has an unknown name {name!r}{hint}"
