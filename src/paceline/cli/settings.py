"""Settings as flags, made from the settings themselves."""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from inspect import Parameter
from typing import Annotated, Any, ClassVar, Literal, TypeVar, cast, get_origin, get_type_hints

import typer

from paceline.cli.sentences import NAMES, OF_ENGINES, SENTENCES, TITLES
from paceline.core.config import PARTS, LoadConfig
from paceline.engine.settings import CoreSettings, EngineSettings
from paceline.server.settings import ServerSettings

HIDDEN = ("num_blocks", "swap_space", "tenant_weights")  # of the scheduler: an engine has its own

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
            metavar="TEXT" if self.default == () else None,
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
        return list[str] if self.default == () else self.kind


class Settings(dict[str, Any]):
    """The settings of an engine that were given, by name; all others keep their defaults."""

    components: ClassVar[dict[str, type[Any]]] = {"load": LoadConfig, **PARTS}

    @classmethod
    def all(cls) -> Iterator[Setting]:
        for part, component in cls.components.items():
            hints = get_type_hints(component)
            for one in fields(component):
                hidden = component is not LoadConfig and one.name in HIDDEN
                if one.default is not MISSING and not hidden:
                    yield Setting(part, one.name, hints[one.name], one.default)

    @classmethod
    def among(cls: type[S], given: Mapping[str, Any]) -> S:
        found = {one.name: plain(given[one.name]) for one in cls.all()}
        return cls({name: value for name, value in found.items() if value not in (None, ())})


class ServingSettings(Settings):
    """Those of a server and of the process that its engine runs in, too."""

    components: ClassVar[dict[str, type[Any]]] = {
        "server": ServerSettings,
        "loop": EngineSettings,
        "core": CoreSettings,
        **Settings.components,
    }


def plain(value: Any) -> Any:
    """Settings that hold several values hold them in tuples."""
    return tuple(cast("list[Any]", value)) if isinstance(value, list) else value


def told(default: Any) -> str | bool:
    """A default as people read it; False where there is nothing to show."""
    if isinstance(default, bool):
        return "yes" if default else "no"
    return str(default) if default not in ("", ()) else False
