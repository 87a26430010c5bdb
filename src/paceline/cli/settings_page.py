"""Prints the page of all settings: `python -m paceline.cli.settings_page > docs/settings.md`."""

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from paceline.cli.setting_flags import ServingSettings, Setting
from paceline.cli.setting_help import OF_ENGINES, SENTENCES, TITLES, unit_of
from paceline.core.config import Config

HEAD = """\
# Settings

Every setting is a flag of `paceline serve`. The commands that run a model in their own process
(`chat`, `complete`, `run-batch`, `bench throughput`, `bench latency`) have those from
[Model and device](#model-and-device) on, which are also arguments of `LLM` and `AsyncLLM`. Those
from [KV cache](#kv-cache) on are arguments of `Scheduler.create` too.

`python -m paceline.cli.settings_page` prints this page.
"""
COLUMNS = "| flag | argument | default | unit | meaning |\n|---|---|---|---|---|"
SCHEDULER_HEAD = """\
## Scheduler alone

These settings are arguments of `Scheduler.create` only: an engine does not use them, or finds
their values itself. The second table has the settings whose defaults in a scheduler differ.

| argument | default | meaning |
|---|---|---|"""
SCHEDULER_SENTENCES = {
    "num_blocks": "Number of KV cache blocks.",
    "recompute_tokens_per_s": "preemption_mode auto: tokens recomputed per second.",
    "swap_blocks_per_s": "preemption_mode auto: blocks swapped per second.",
    "enable_kv_cache_events": "Record stored and removed blocks for `Scheduler.cache_events`.",
    "attention_groups": "Layers by the positions they read. Engines take them from the model.",
    "model_fingerprint": "Name of the weights, as part of the keys of cached blocks.",
    "lookahead_slots": "Additional KV positions that a drafter writes beyond the sequence.",
    "swap_space": "Number of blocks in host memory for preempted sequences and cached prefixes.",
}


def page() -> str:
    return "\n".join([HEAD, *sections(), *scheduler_section()]) + "\n"


def sections() -> Iterator[str]:
    settings = list(ServingSettings.all())
    for component, title in TITLES.items():
        yield f"## {title}\n\n{COLUMNS}"
        yield from (row(one) for one in settings if one.component == component)
        yield ""


def row(setting: Setting) -> str:
    name = setting.name
    default = code(setting.default_text) if setting.default_text else ""
    sentence = SENTENCES[name] + choices(setting.kind)
    return f"| `{setting.flag_name}` | `{name}` | {default} | {unit_of(name)} | {sentence} |"


def choices(kind: Any) -> str:
    if get_origin(kind) is not Literal:
        return ""
    return f" One of {', '.join(code(one) for one in get_args(kind))}."


def code(text: str) -> str:
    """A default that is a value, not a sentence about it."""
    value, semicolon, rest = text.partition(";")
    return f"`{value}`{semicolon}{rest}" if " " not in value else text


def scheduler_section() -> Iterator[str]:
    yield SCHEDULER_HEAD
    defaults = Config().to_dict()
    for name, sentence in SCHEDULER_SENTENCES.items():
        yield f"| `{name}` | {plain_default(defaults[name])} | {sentence} |"
    yield "\n| argument | default in a scheduler |\n|---|---|"
    for name in (one for one in OF_ENGINES if one in defaults):
        if not OF_ENGINES[name].startswith(f"{defaults[name]};"):
            yield f"| `{name}` | {plain_default(defaults[name])} |"


def plain_default(value: Any) -> str:
    text = {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
    return f"`{text}`" if text else ""


if __name__ == "__main__":
    print(page(), end="")
