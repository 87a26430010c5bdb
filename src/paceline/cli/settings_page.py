"""Prints the page of all settings: `python -m paceline.cli.settings_page > docs/settings.md`.

With `types` it prints their types for checkers:
`python -m paceline.cli.settings_page types > src/paceline/wiring/setting_fields.py`.
"""

import sys
from collections.abc import Iterator
from dataclasses import fields
from json import dumps
from textwrap import wrap
from typing import Any, Literal, get_args, get_origin, get_type_hints

from paceline.cli.setting_flags import HIDDEN, TITLES, ServingSettings, Setting
from paceline.core.settings.config import COMPONENTS, Config
from paceline.engine.settings import ENGINE_COMPONENTS
from paceline.wiring.settings import ENGINE_SETTINGS
from paceline.wiring.vllm.table import VLLM

HEAD = """\
# Settings

Every setting is a flag of `paceline serve`. The commands that run a model in their own process
(`chat`, `complete`, `run-batch`, `bench throughput`, `bench latency`) have those from
[Model and device](#model-and-device) on, which are also arguments of `LLM` and `AsyncLLM`. Those
from [KV cache](#kv-cache) on are arguments of `Scheduler.create` too.

`python -m paceline.cli.settings_page` prints this page.
"""
COLUMNS = "| flag | argument | default | unit | meaning |\n|---|---|---|---|---|"
CONFIGS = ("speculative", "kv_transfer", "kv_events")
SCHEDULER_HEAD = """\
## Scheduler alone

These settings are arguments of `Scheduler.create` only: an engine does not use them, or finds
their values itself. The second table has the settings whose defaults in a scheduler differ.

| argument | default | meaning |
|---|---|---|"""
MAPPINGS = ("limit_mm_per_prompt", *(f"{one}_config" for one in CONFIGS))  # a dict, or JSON
TYPES_HEAD = '''\
"""The settings of `LLM` and `AsyncLLM` for type checkers; written by `cli/settings_page.py`."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from paceline.hub.repository_files import Progress

# None stands for the default.
PacelineSettings = TypedDict(  # noqa: UP013
    "PacelineSettings",
    {'''
TYPES_MIDDLE = """\
    },
    total=False,
)

# Each passes, is mapped, or is refused with the reason: see `vllm/table.py`.
# fmt: off
VllmSettings = TypedDict("VllmSettings", {  # noqa: UP013"""
TYPES_TAIL = '''\
}, total=False)
# fmt: on


class LLMSettings(PacelineSettings, VllmSettings, total=False):
    """Everything that `LLM` takes by name beside the model."""

    progress: Progress  # shows what the start waits for
'''


def page() -> str:
    return "\n".join([HEAD, *sections(), *scheduler_section()]) + "\n"


def sections() -> Iterator[str]:
    settings = list(ServingSettings.all())
    for component in ServingSettings.components:
        yield f"## {TITLES[component]}\n\n{COLUMNS}"
        yield from (row(one) for one in settings if one.component == component)
        yield ""


def row(setting: Setting) -> str:
    default = code(setting.default_text) if setting.default_text else ""
    cells = f"`{setting.flag_name}`", f"`{setting.name}`", default, setting.unit, setting.meaning
    return f"| {' | '.join(cells)}{choices(setting.kind)} |"


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
    settings = [one for pair in COMPONENTS.items() for one in Setting.declared_by(*pair)]
    for one in (one for one in settings if one.name in HIDDEN):
        yield f"| `{one.name}` | {plain_default(defaults[one.name])} | {one.meaning} |"
    yield "\n| argument | default in a scheduler |\n|---|---|"
    for one in (one for one in settings if one.name not in HIDDEN):
        plain, shown = plain_default(defaults[one.name]), code(one.default_text)
        if one.default_text and not shown.startswith(plain):
            yield f"| `{one.name}` | {plain} |"


def plain_default(value: Any) -> str:
    text = {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
    return f"`{text}`" if text else ""


def types() -> str:
    """A module that gives type checkers the settings of `LLM` and `AsyncLLM`."""
    hints: dict[str, Any] = {}
    for kind in reversed(ENGINE_COMPONENTS.values()):  # the first of two of the same name counts
        found = get_type_hints(kind)
        hints |= {one.name: found[one.name] for one in fields(kind)}
    ours = [
        f'        "{name}": {written(name, hints[name])} | None,'
        for name in sorted({*ENGINE_SETTINGS})
    ]
    names = sorted({"revision", *VLLM} - {*ENGINE_SETTINGS})
    theirs = " ".join(f'"{name}":\N{NO-BREAK SPACE}Any,' for name in names)
    lines = ["    " + line.replace("\N{NO-BREAK SPACE}", " ") for line in wrap(theirs, 96)]
    return "\n".join([TYPES_HEAD, *ours, TYPES_MIDDLE, *lines, TYPES_TAIL])


def written(name: str, kind: Any) -> str:
    """The type of an argument as source."""
    if get_origin(kind) is Literal:
        return f"Literal[{', '.join(map(dumps, get_args(kind)))}]"
    if name in MAPPINGS:
        return "str | Mapping[str, Any]"
    if get_origin(kind) is tuple:
        return "Sequence[str]"
    return kind.__name__ if isinstance(kind, type) else "Mapping[str, float]"


if __name__ == "__main__":
    print(types() if sys.argv[1:] == ["types"] else page(), end="")
