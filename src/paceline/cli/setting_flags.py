"""Flags for all settings, made from the dataclasses that define them."""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from inspect import Parameter
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import typer

from paceline.cli.setting_help import (
    ENVIRONMENT,
    METAVARS,
    NAMES,
    OF_ENGINES,
    OF_SERVERS,
    SENTENCES,
    SHORT,
    TITLES,
    unit_of,
)
from paceline.core.errors import ConfigError
from paceline.core.settings.config import LoadConfig
from paceline.engine.settings import ENGINE_COMPONENTS, CoreSettings, EngineSettings
from paceline.server.settings import ServerSettings
from paceline.wiring.settings import SCHEDULER_ONLY
from paceline.wiring.vllm.settings import VALUES
from paceline.wiring.vllm.table import VLLM, plain

HIDDEN = (*SCHEDULER_ONLY, "swap_space")  # settings of a scheduler that an engine does not have
OF_COMMAND = ("host", "port", "uds")  # options of `serve`, and no settings
OF_EACH_ENGINE = ("trace_name",)  # a server with several engines sets it

# Metavars of units that a number alone would not show.
MEASURES = {"seconds": "SECONDS", "bytes": "BYTES", "GiB": "GIB", "fraction": "FRACTION"}

SWITCHES = ("enable_", "disable_")  # how flags of vLLM begin that take no value
NAMES_OF_FILES = ("revision", "code_revision", "tokenizer", "tokenizer_revision")

S = TypeVar("S", bound="Settings")


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting, and its flag."""

    component: str
    name: str
    kind: Any
    default: Any

    @property
    def flag_name(self) -> str:
        return "--" + NAMES.get(self.name, self.name).replace("_", "-")

    @property
    def default_text(self) -> str:
        """The default as help shows it; empty if there is nothing to show."""
        plain = str(self.default) if self.default not in ("", (), {}) else ""
        if isinstance(self.default, bool):
            plain = "yes" if self.default else "no"
        return (OF_ENGINES | OF_SERVERS).get(self.name, plain)

    @property
    def flag(self) -> Parameter:
        """The flag as a parameter, with the value None if it is not given."""
        plain, text = self.flag_name, "TEXT" if self.default == () else None
        option = typer.Option(
            f"{plain}/--no-{plain.removeprefix('--')}" if self.kind is bool else plain,
            *((SHORT[self.name],) if self.name in SHORT else ()),
            help=SENTENCES[self.name],
            envvar=ENVIRONMENT.get(self.name),
            show_envvar=False,
            metavar=METAVARS.get(self.name) or MEASURES.get(unit_of(self.name)) or text,
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


class Settings(dict[str, Any]):
    """The engine settings that were given, by name; all others keep their defaults."""

    apart: ClassVar = ("seed",)  # the commands with prompts have a flag for that of a request
    components: ClassVar[dict[str, type[Any]]] = ENGINE_COMPONENTS

    @classmethod
    def all(cls) -> Iterator[Setting]:
        for name, component in cls.components.items():
            hints = get_type_hints(component)
            for one in fields(component):
                hidden = component is not LoadConfig and one.name in (*HIDDEN, *OF_EACH_ENGINE)
                hidden |= one.name in cls.apart
                default = one.default
                if one.default_factory is not MISSING:
                    default = dict(one.default_factory())  # the only kind in use
                if default is not MISSING and not hidden:
                    yield Setting(name, one.name, hints[one.name], default)

    @classmethod
    def among(cls: type[S], given: Mapping[str, Any]) -> S:
        found = {one.name: one.read(given[one.name]) for one in cls.all()}
        return cls({name: value for name, value in found.items() if value not in (None, (), {})})


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


class VllmFlags(dict[str, Any]):
    """The flags of `vllm serve` that were given and are no flags of ours."""

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
    def among(cls, given: Mapping[str, Any]) -> "VllmFlags":
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
            raise ConfigError(f"{pair!r} is not the weight of a tenant; write NAME=WEIGHT")
    return found
