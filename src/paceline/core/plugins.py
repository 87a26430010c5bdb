"""Classes by the name of their module or by a dotted path, and optional libraries."""

from collections.abc import Callable, Sequence
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, TypeVar

from paceline.core.errors import ConfigError

T = TypeVar("T")
EXTRAS = ("flashinfer",)  # packages that an extra of the same name installs


def load(what: str, name: str, package: str, base: type[T]) -> Callable[..., T]:
    """A `what` of that name: `longest_first` is the class LongestFirst in its module."""
    module, _, own = name.rpartition(".")
    if not module:
        module, own = f"{package}.{name}", name.title().replace("_", "")
        known = [one.name for one in iter_modules(import_module(package).__path__)]
        if name not in known:
            raise ConfigError(f"no {what} {name!r}: there are {', '.join(known)}, and dotted paths")
    try:
        found: Any = getattr(import_module(module), own)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        absent = getattr(error, "name", None)
        how = f"; pip install 'paceline[{absent}]'" if absent in EXTRAS else ""
        raise ConfigError(f"no {what} {name!r}: {error}{how}") from None
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ConfigError(f"{what} {name!r} is not a subclass of {base.__name__}")
    missing: frozenset[str] = getattr(found, "__abstractmethods__", frozenset())
    if missing:
        raise ConfigError(f"{what} {name!r} does not define {', '.join(sorted(missing))}")
    return found


def library(names: Sequence[str], extra: str) -> Any:
    """The first of some modules that is installed. ConfigError says how to install one."""
    for name in names:
        try:
            return import_module(name)
        except ModuleNotFoundError:
            continue
    raise ConfigError(f"{names[0]} is not installed: pip install 'paceline[{extra}]'")
