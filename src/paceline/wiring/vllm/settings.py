"""Translates settings of vLLM before anything reads them.

A value that asks for nothing passes. One that changes nothing here passes with a warning, one that
has another name here is renamed, and one that needs what paceline lacks is refused with the reason.
"""

import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from paceline.core.errors import ConfigError
from paceline.hub.repository_files import RepositoryName
from paceline.wiring.vllm.table import VLLM

log = logging.getLogger(__name__)

# Names of values that vLLM has for settings of ours.
VALUES: dict[str, dict[Any, Any]] = {
    "kv_cache_dtype": {"bfloat16": "bf16", "fp8_e4m3": "fp8"},
    "max_model_len": {-1: None, "auto": None},
    "load_format": {"hf": "auto"},
}


def translated(
    model: str, settings: Mapping[str, Any], accepted: Collection[str]
) -> tuple[str, dict[str, Any]]:
    """The model and settings under our names; the caller takes the names in `accepted`.

    ConfigError for a value that would need what paceline lacks. Unknown names are left as they are.
    """
    given = dict(settings)
    found: dict[str, Any] = {}
    silent: dict[str, str] = {}
    revision = given.pop("revision", None)
    for name, same in (("tokenizer", model), ("tokenizer_revision", revision)):
        if given.get(name) == same:
            given.pop(name, None)
    model = with_revision(model, revision, silent)
    for name, value in given.items():
        if name in accepted or name not in VLLM:
            if (plain := in_our_words(name, value)) is not None or name not in accepted:
                found[name] = plain
            continue
        theirs = VLLM[name]
        if theirs.asks_for_nothing(value):
            continue
        ours = {} if theirs.read is None else theirs.read(value)
        if ours.keys() <= {*accepted} and theirs.read is not None:
            found |= ours
        elif theirs.ignored:
            silent[name] = theirs.reason
        else:
            shown = "given" if value is True else f"{value!r:.80}"
            raise ConfigError(f"{name} is {shown}, which is not supported: {theirs.reason}")
    if silent:
        listed = "; ".join(f"{name} ({reason})" for name, reason in silent.items())
        log.warning("settings of vLLM without effect here: %s", listed)
    return model, found


def in_our_words(name: str, value: Any) -> Any:
    """The value as our setting has it; None for one that means the default."""
    if name in ("dtype", "kv_cache_dtype", "device") and not isinstance(value, str | None):
        value = str(value).removeprefix("torch.")  # of a dtype or a device of torch
    if isinstance(value, Path):
        value = str(value)
    words = VALUES.get(name, {})
    return words[value] if isinstance(value, str | int) and value in words else value


def with_revision(model: str, revision: str | None, silent: dict[str, str]) -> str:
    """The name of a repository with the revision that vLLM takes as a setting."""
    if not revision:
        return model
    name = RepositoryName.parse(model)
    if name is None or Path(model).expanduser().exists():
        silent["revision"] = "only a repository, owner/name, has revisions"
        return model
    if name.revision not in (None, revision):
        raise ConfigError(f"revision is {revision!r}, but the model is {model}; remove one of them")
    return str(RepositoryName(name.repository, revision, name.gguf))
