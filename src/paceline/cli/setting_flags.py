"""Settings as flags, made from the settings themselves."""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from inspect import Parameter
from typing import Annotated, Any, ClassVar, Literal, TypeVar, cast, get_origin, get_type_hints

import typer

from paceline.cli.setting_help import METAVARS, NAMES, OF_ENGINES, SENTENCES, TITLES
from paceline.core.config import PARTS, LoadConfig
from paceline.core.errors import ConfigError
from paceline.engine.settings import CoreSettings, EngineSettings
from paceline.server.settings import ServerSettings
from paceline.wiring.settings import SCHEDULERS

HIDDEN = (*SCHEDULERS, "swap_space")  # of the scheduler: an engine has its own, or none

S = TypeVar("S", bound="Settings")


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting that has a flag."""

    component: str
    name: str
    kind: Any
    default: Any

    @property
    def flag(self) -> Parameter:
        """As a parameter; None stands for one that was not given."""
        plain = NAMES.get(self.name, self.name).replace("_", "-")
        option = typer.Option(
            f"--{plain}/--no-{plain}" if self.kind is bool else f"--{plain}",
            help=SENTENCES.get(self.name, ""),
            metavar=METAVARS.get(self.name, "TEXT" if self.default == () else None),
            show_default=OF_ENGINES.get(self.name) or told(self.default),
            rich_help_panel=TITLES.get(self.component, self.component),
        )
        annotation = Annotated[self._taken | None, option]
        return Parameter(self.name, Parameter.KEYWORD_ONLY, default=None, annotation=annotation)

    @property
    def _taken(self) -> Any:
        """What the command line can read: a choice, a list, or a value of a plain type."""
        if get_origin(self.kind) is Literal:
            return self.kind
        return list[str] if isinstance(self.default, tuple | Mapping) else self.kind

    def read(self, given: Any) -> Any:
        """What was given, as the setting has it: several values in a tuple, pairs in a dict."""
        if isinstance(self.default, Mapping):
            return weights_in(given or [])
        return tuple(cast("list[Any]", given)) if isinstance(given, list) else given


class Settings(dict[str, Any]):
    """The settings of an engine that were given, by name; all others keep their defaults."""

    components: ClassVar[dict[str, type[Any]]] = {"load": LoadConfig, **PARTS}

    @classmethod
    def all(cls) -> Iterator[Setting]:
        for part, component in cls.components.items():
            hints = get_type_hints(component)
            for one in fields(component):
                hidden = component is not LoadConfig and one.name in HIDDEN
                default = one.default
                if one.default_factory is not MISSING:
                    default = dict(one.default_factory())  # the one kind that there is
                if default is not MISSING and not hidden:
                    yield Setting(part, one.name, hints[one.name], default)

    @classmethod
    def among(cls: type[S], given: Mapping[str, Any]) -> S:
        found = {one.name: one.read(given[one.name]) for one in cls.all()}
        return cls({name: value for name, value in found.items() if value not in (None, (), {})})


class ServingSettings(Settings):
    """Those of a server and of the process that its engine runs in, too."""

    components: ClassVar[dict[str, type[Any]]] = {
        "server": ServerSettings,
        "loop": EngineSettings,
        "core": CoreSettings,
        **Settings.components,
    }


def weights_in(pairs: list[str]) -> dict[str, float]:
    """Each a name and a number, such as alice=2."""
    found: dict[str, float] = {}
    for pair in pairs:
        name, _, weight = pair.rpartition("=")
        try:
            found[name] = float(weight)
        except ValueError:
            name = ""
        if not name:
            raise ConfigError(f"{pair!r} is no weight of a tenant; write NAME=WEIGHT")
    return found


def told(default: Any) -> str | bool:
    """A default as people read it; False where there is nothing to show."""
    if isinstance(default, bool):
        return "yes" if default else "no"
    return str(default) if default not in ("", (), {}) else False
