"""Flags for all settings, made from the dataclasses that define them."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from inspect import Parameter, getdoc
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    Self,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import typer

from paceline.core.errors import ConfigError
from paceline.core.settings.load import LoadConfig
from paceline.engine.settings import ENGINE_COMPONENTS, CoreSettings, EngineSettings
from paceline.server.settings import ServerSettings
from paceline.wiring.settings import (
    BATCH_DEFAULTS,
    CPU_DEFAULTS,
    CUDA_DEFAULTS,
    FILL_LEAST_BYTES,
    FILL_POSITIONS,
    GIB,
    SCHEDULER_ONLY,
)
from paceline.wiring.vllm.settings import VALUES
from paceline.wiring.vllm.table import VLLM, plain

TITLES = {
    "server": "Server",
    "worker": "Worker of Dynamo",
    "loop": "Engine loop",
    "core": "Engine process",
    "load": "Model and device",
    "adapters": "Adapters",
    "cache": "KV cache",
    "step": "Step",
    "queue": "Queue",
    "policy": "Policy",
    "preemption": "Preemption",
    "speculation": "Speculative decoding",
    "service": "Service levels",
    "journal": "Journal",
    "encoder": "Images",
    "loading": "Connectors",
    "record": "Recording",
}

# Flags with another name than their setting: one value each, or the name that vLLM has.
NAMES = {
    "api_keys": "api_key",
    "tenant_keys": "tenant_key",
    "allowed_origins": "allowed_origin",
    "aliases": "served_model_name",
    "tenant_weights": "tenant_weight",
}
SHORT = {"tensor_parallel_size": "-tp"}  # as in vLLM
METAVARS = {
    "tenant_weights": "NAME=WEIGHT",
    "tenant_ttft_target_ms": "NAME=MS",
    "tenant_itl_target_ms": "NAME=MS",
    "tenant_keys": "NAME=KEY",
    "record": "FILE",
    "trace": "FILE",
    "lora_modules": "NAME=PATH",
    "served_model_name": "NAME",
    "tool_call_parser": "NAME",
    "reasoning_parser": "NAME",
    "speculative_config": "JSON",
    "kv_events_config": "JSON",
    "limit_mm_per_prompt": "JSON",
    "kv_transfer_config": "JSON",
}
ENVIRONMENT = {
    "api_keys": "PACELINE_API_KEY",
    "namespace": "DYN_NAMESPACE",
    "discovery_backend": "DYN_DISCOVERY_BACKEND",
    "request_plane": "DYN_REQUEST_PLANE",
    "event_plane": "DYN_EVENT_PLANE",
}

# Defaults that depend on the model, the device or the command.
SHOWN_DEFAULTS = {
    "max_model_len": "the model's own",
    "max_loras": "0; with enable_lora 1",
    "max_step_s": f"{CPU_DEFAULTS['max_step_s']} on a CPU; 0.0 on a GPU, for batches, or if "
    "max_num_batched_tokens is given",
    "fill_positions": f"0; on a GPU {FILL_POSITIONS} for weights of {FILL_LEAST_BYTES // GIB} GiB "
    "or more",
    "api_server_count": "one for every four cores, 1 to 8; with --core thread 1",
    "dashboard": "yes on localhost and Unix sockets, otherwise no",
}
UNITS = {"_s": "seconds", "_bytes": "bytes"}  # by the end of a name
# A line of the docstring of a settings class: NAME (UNIT): MEANING.
ENTRY = re.compile(r"^    (\w+)(?: \((.+?)\))?: (.+(?:\n {8}.+)*)", re.MULTILINE)

HIDDEN = (*SCHEDULER_ONLY, "swap_space")  # settings of a scheduler that an engine does not have
OF_COMMAND = ("host", "port", "uds")  # options of `serve`, and no settings
OF_EACH_ENGINE = ("trace_name",)  # a server with several engines sets it

# Metavars of units that a number alone would not show.
MEASURES = {"seconds": "SECONDS", "bytes": "BYTES", "GiB": "GIB", "fraction": "FRACTION"}

SWITCHES = ("enable_", "disable_")  # how flags of vLLM begin that take no value
NAMES_OF_FILES = ("revision", "code_revision", "tokenizer", "tokenizer_revision")


def attributes(kind: type[Any]) -> dict[str, tuple[str, str]]:
    """Unit and meaning of each field in the docstring of a class; none with `python -OO`."""
    found = ENTRY.findall(getdoc(kind) or "")
    return {name: (unit, " ".join(meaning.split())) for name, unit, meaning in found}


class FlagGroup(dict[str, Any], ABC):
    """The flags of a group that were given, by name; all others keep their defaults."""

    @classmethod
    @abstractmethod
    def flags(cls) -> Iterator[Parameter]:
        """The flags as parameters, with the value None if they are not given."""

    @classmethod
    @abstractmethod
    def among(cls, given: Mapping[str, Any]) -> Self:
        """The flags of this group among those of a command line."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting as its dataclass declares it, and its flag."""

    component: str
    name: str
    kind: Any
    default: Any
    unit: str  # "": none
    meaning: str

    @staticmethod
    def declared_by(component: str, kind: type[Any]) -> "Iterator[Setting]":
        """The settings of a dataclass that have a default. Units and meanings are in its docstring,
        which names every field."""
        entries, types = attributes(kind), get_type_hints(kind)
        for one in fields(kind):
            default = one.default
            if one.default_factory is not MISSING:
                default = dict(one.default_factory())  # the only kind in use
            if default is MISSING:
                continue
            unit, meaning = entries.get(one.name, ("", ""))
            unit = unit or next((UNITS[end] for end in UNITS if one.name.endswith(end)), "")
            yield Setting(component, one.name, types[one.name], default, unit, meaning)

    @property
    def flag_name(self) -> str:
        return "--" + NAMES.get(self.name, self.name).replace("_", "-")

    @property
    def default_text(self) -> str:
        """The default as help shows it; empty if there is nothing to show."""
        plain = str(self.default) if self.default not in ("", (), {}) else ""
        if isinstance(self.default, bool):
            plain = "yes" if self.default else "no"
        if self.name in SHOWN_DEFAULTS:
            return SHOWN_DEFAULTS[self.name]
        plain = str(CPU_DEFAULTS.get(self.name, plain))
        for where, defaults in (("on a GPU", CUDA_DEFAULTS), ("for batches", BATCH_DEFAULTS)):
            if self.name in defaults:
                plain += f"; {where} {defaults[self.name]}"
        return plain

    @property
    def flag(self) -> Parameter:
        """The flag as a parameter, with the value None if it is not given."""
        plain, text = self.flag_name, "TEXT" if self.default == () else None
        option = typer.Option(
            f"{plain}/--no-{plain.removeprefix('--')}" if self.kind is bool else plain,
            *((SHORT[self.name],) if self.name in SHORT else ()),
            help=self.meaning,
            envvar=ENVIRONMENT.get(self.name),
            show_envvar=False,
            metavar=METAVARS.get(self.name) or MEASURES.get(self.unit) or text,
            show_default=self.default_text or False,
            rich_help_panel=TITLES[self.component],
        )
        annotation = Annotated[self._taken | None, option]
        return Parameter(self.name, Parameter.KEYWORD_ONLY, default=None, annotation=annotation)

    @property
    def _taken(self) -> Any:
        """The type that the command line parses: a choice, a list, or a plain type."""
        if get_origin(self.kind) is Literal:
            theirs = [word for word in VALUES.get(self.name, ()) if isinstance(word, str)]
            return Literal[(*get_args(self.kind), *theirs)]
        return list[str] if isinstance(self.default, tuple | Mapping) else self.kind

    def read(self, given: Any) -> Any:
        """The value as the setting has it: several values in a tuple, pairs in a dict."""
        if isinstance(self.default, Mapping):
            return weights_in(given or [])
        return tuple(cast("list[Any]", given)) if isinstance(given, list) else given


class Settings(FlagGroup):
    """The engine settings that were given."""

    apart: ClassVar = ("seed",)  # the commands with prompts have a flag for that of a request
    components: ClassVar[dict[str, type[Any]]] = ENGINE_COMPONENTS

    @classmethod
    def all(cls) -> Iterator[Setting]:
        for name, component in cls.components.items():
            hidden = {*OF_EACH_ENGINE, *(() if component is LoadConfig else HIDDEN), *cls.apart}
            declared = Setting.declared_by(name, component)
            yield from (one for one in declared if one.name not in hidden)

    @classmethod
    def flags(cls) -> Iterator[Parameter]:
        return (one.flag for one in cls.all())

    @classmethod
    def among(cls, given: Mapping[str, Any]) -> Self:
        found = {one.name: one.read(given[one.name]) for one in cls.all()}
        return cls({name: value for name, value in found.items() if value not in (None, (), {})})


class LoadSettings(Settings):
    """The settings of a model on a device, for steps that are planned already."""

    apart: ClassVar = ("seed", "swap_space", "num_gpu_blocks_override", "speculative_config")
    components: ClassVar[dict[str, type[Any]]] = {"load": LoadConfig}


class ServingSettings(Settings):
    """The settings of an engine, of its process and of the server."""

    apart: ClassVar = ()
    components: ClassVar[dict[str, type[Any]]] = {
        "server": ServerSettings,
        "loop": EngineSettings,
        "core": CoreSettings,
        **Settings.components,
    }


@dataclass(frozen=True, slots=True)
class VllmFlag:
    """A flag of `vllm serve` that has another name here, or no meaning. Help does not list it."""

    name: str
    is_switch: bool

    @property
    def flag(self) -> Parameter:
        plain = self.name.replace("_", "-")
        names = f"--{plain}/--no-{plain}" if self.is_switch else f"--{plain}"
        annotation = Annotated[
            bool | None if self.is_switch else str | None, typer.Option(names, hidden=True)
        ]
        return Parameter(self.name, Parameter.KEYWORD_ONLY, default=None, annotation=annotation)

    def read(self, given: Any) -> Any:
        is_json = isinstance(given, str) and self.name not in NAMES_OF_FILES
        return plain(given) if is_json else given


class VllmFlags(FlagGroup):
    """The flags of `vllm serve` that were given and do not exist here."""

    @classmethod
    def all(cls) -> Iterator[VllmFlag]:
        settings = list(ServingSettings.all())
        ours = {*OF_COMMAND, *(one.name for one in settings)}
        ours |= {NAMES[name] for name in ours & NAMES.keys()}
        for name, one in VLLM.items():
            if name not in ours:
                is_switch = isinstance(one.default, bool) or name.startswith(SWITCHES)
                yield VllmFlag(name, is_switch)
        yield VllmFlag("revision", is_switch=False)

    @classmethod
    def flags(cls) -> Iterator[Parameter]:
        return (one.flag for one in cls.all())

    @classmethod
    def among(cls, given: Mapping[str, Any]) -> Self:
        read = {one.name: one.read(given[one.name]) for one in cls.all()}
        return cls({name: value for name, value in read.items() if value is not None})


def weights_in(pairs: list[str]) -> dict[str, float]:
    """Parse pairs such as alice=2."""
    found: dict[str, float] = {}
    for pair in pairs:
        name, _, weight = pair.rpartition("=")
        try:
            found[name] = float(weight)
        except ValueError:
            name = ""
        if not name:
            raise ConfigError(f"{pair!r} is not a tenant and a number; write NAME=NUMBER")
    return found
