"""Libraries that only some connectors need."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from paceline.core.errors import ConfigError


def library(names: Sequence[str], extra: str) -> Any:
    """The first of some modules that is installed. ConfigError says how to install one."""
    for name in names:
        try:
            return import_module(name)
        except ModuleNotFoundError:
            continue
    raise ConfigError(f"{names[0]} is not installed: pip install 'paceline[{extra}]'")
