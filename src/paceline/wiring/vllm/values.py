"""Reads values of vLLM's settings that are other settings here."""

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any, cast

from paceline.core.errors import ConfigError

log = logging.getLogger(__name__)

GIB = 1 << 30
Reader = Callable[[Any], dict[str, Any]]
LIMIT, EVENTS = "limit_mm_per_prompt", "kv_events_config"


def as_json(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The same settings, with mappings written as JSON."""
    found = dict(settings)
    for name in (LIMIT, EVENTS):
        if isinstance(given := found.get(name), Mapping):
            found[name] = json.dumps(dict(cast("Mapping[str, Any]", given)))
    return found


def from_json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{name} is {text!r:.200}, which is not JSON: {error}") from None


def mapping_in(name: str, given: Any, example: str) -> dict[str, Any]:
    """The mapping of a setting, which is a mapping or JSON."""
    content = from_json(name, given) if isinstance(given, str) else given
    if not isinstance(content, Mapping):
        raise ConfigError(f"{name} is {given!r:.200}; it must be a mapping, such as {example}")
    return {str(key): value for key, value in cast("Mapping[Any, Any]", content).items()}


def several(name: str) -> Reader:
    """A reader of one text or a list of them."""
    return lambda value: {name: (value,) if isinstance(value, str) else tuple(value)}


def fields_of(name: str, value: Any) -> dict[str, Any]:
    """The fields of one of vLLM's config objects, or of a dict or JSON instead of it, that are not
    at their default."""
    given = from_json(name, value) if isinstance(value, str) else value
    is_plain = isinstance(given, Mapping)
    if not (is_plain or hasattr(given, "__dict__")):
        raise ConfigError(f"{name} is {value!r:.80}; it must be an object with fields")
    defaults: Mapping[str, Any] = {} if is_plain else vars(cast("type[Any]", type(given)))
    fields = cast("Mapping[str, Any]", given if is_plain else vars(given))
    return {
        key: one
        for key, one in fields.items()
        if one not in (None, False, "", {}, []) and one != defaults.get(key)
    }


def from_config(name: str, keys: Mapping[str, str]) -> Reader:
    """A reader of a config object. `keys` are its fields that have a setting here."""

    def read(value: Any) -> dict[str, Any]:
        asked = fields_of(name, value)
        for key in asked.keys() - keys.keys():
            raise ConfigError(
                f"{name} has {key!r}, which is not supported; it may have {', '.join(keys)}"
            )
        return {keys[key]: one for key, one in asked.items()}

    return read


def pooler(value: Any) -> dict[str, Any]:
    """vLLM's `pooler_config`: how hidden states become a vector."""
    keys = {"pooling_type": "pooling", "seq_pooling_type": "pooling"}
    return {key: str(one).lower() for key, one in from_config("pooler_config", keys)(value).items()}


def attention(value: Any) -> dict[str, Any]:
    """The attention backend that corresponds to one of vLLM."""
    name = str(getattr(value, "name", value)).upper()
    # The module `sdpa` is the slow reference of tests, so the device decides.
    known = {"FLASHINFER": "flashinfer", "TRITON_ATTN": "triton", "TORCH_SDPA": "auto"}
    if name not in known:
        log.warning("attention_backend %s is not known here; it is chosen by device", name)
        return {}
    return {"attention": known[name]}


def attention_config(value: Any) -> dict[str, Any]:
    """Its backend. The rest chooses among kernels of vLLM."""
    backend = fields_of("attention_config", value).get("backend")
    return {} if backend is None else attention(backend)


def kv_bytes(value: Any) -> dict[str, Any]:
    try:
        return {"kv_cache_gib": float(value) / GIB}
    except (TypeError, ValueError):
        raise ConfigError(
            f"kv_cache_memory_bytes is {value!r:.80}; it must be a number of bytes"
        ) from None
