"""Classes of plug-ins by name or dotted path, and optional libraries."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, TypeVar

from paceline.core.errors import ConfigError

T = TypeVar("T")
EXTRAS = {  # which extra installs a package
    "flashinfer": "flashinfer",
    "llguidance": "model",
    "tvm_ffi": "xgrammar",
    "xgrammar": "xgrammar",
}


def load(
    what: str,
    name: str,
    known: str | Mapping[str, str | type[T]],
    base: type[T],
    also: Sequence[str] = (),
) -> type[T]:
    """Load the class of a `what`, such as a policy.

    `known` are classes or their dotted paths by name, or a package in which the module
    `longest_first` has the class LongestFirst. Any other name is a dotted path. An error lists
    the known names, and the names in `also`, which the caller handles.
    """
    table = classes_of(known) if isinstance(known, str) else known
    found: Any = table.get(name, name)
    if isinstance(found, str):
        found = imported(what, name, found, (*table, *also))
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ConfigError(f"{what} {name!r} is not a subclass of {base.__name__}")
    missing: frozenset[str] = getattr(found, "__abstractmethods__", frozenset())
    if missing:
        raise ConfigError(f"{what} {name!r} does not define {', '.join(sorted(missing))}")
    return found


def classes_of(package: str) -> dict[str, str]:
    """Dotted paths of the classes in a package, by module name."""
    modules = [one.name for one in iter_modules(import_module(package).__path__)]
    return {name: f"{package}.{name}.{name.title().replace('_', '')}" for name in modules}


def imported(what: str, name: str, path: str, known: Sequence[str]) -> Any:
    """Import what a dotted path names."""
    module, _, attribute = path.rpartition(".")
    if not module:
        raise ConfigError(f"no {what} {name!r}: there are {', '.join(known)}, and dotted paths")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        extra = EXTRAS.get(getattr(error, "name", None) or "")
        how = f"; pip install 'paceline[{extra}]'" if extra else ""
        raise ConfigError(f"no {what} {name!r}: {error}{how}") from None


def library(names: Sequence[str], extra: str) -> Any:
    """The first of some modules that is installed. ConfigError says how to install one."""
    for name in names:
        try:
            return import_module(name)
        except ModuleNotFoundError:
            continue
    raise ConfigError(f"{names[0]} is not installed: pip install 'paceline[{extra}]'")
