"""Checks that settings share: their types, signs and choices."""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from sys import float_info
from types import MappingProxyType
from typing import Any, Literal, cast, get_args, get_origin

from paceline.core.errors import ConfigError

LARGEST = 2**31 - 1  # of a count: plans have 32 bits for numbers of tokens and blocks


def require(truth: bool, complaint: str) -> None:
    if not truth:
        raise ConfigError(complaint)


def one_of(name: str, value: Any, choices: tuple[str, ...]) -> None:
    require(
        value in choices, f"{name} is {value!r}; choose one of {', '.join(filter(None, choices))}"
    )


def check_types(config: Any) -> None:
    """Check that every setting has the type of its default, and is one of its choices if it has
    any. A whole number will do for a fraction."""
    for setting in fields(config):
        if setting.default is MISSING:
            continue
        value, kind = getattr(config, setting.name), cast("type[Any]", type(setting.default))
        allowed: tuple[type[Any], ...] = (int, float) if kind is float else (kind,)
        right = isinstance(value, allowed) and isinstance(value, bool) == (kind is bool)
        require(right, f"{setting.name} is {value!r}; it must be of type {kind.__name__}")
        if kind is int and not setting.name.endswith("_bytes"):
            require(value <= LARGEST, f"{setting.name} is {value}; at most {LARGEST}")
        if get_origin(setting.type) is Literal:
            one_of(setting.name, value, get_args(setting.type))


def positive(config: Any, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        require(value > 0, f"{name} is {value}; it must be positive")


def not_negative(config: Any, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        require(value >= 0, f"{name} is {value}; it cannot be negative")


def by_tenant(config: Any, name: str) -> None:
    """Replace a mapping of tenants to numbers by a copy that cannot be written."""
    given: Any = getattr(config, name)
    complaint = f"{name} is {given!r}; it maps names of tenants to numbers"
    require(isinstance(given, Mapping), complaint)
    numbers: dict[Any, Any] = dict(given)
    require(all(isinstance(tenant, str) for tenant in numbers), complaint)
    require(all(isinstance(number, int | float) for number in numbers.values()), complaint)
    require(all(abs(number) <= float_info.max for number in numbers.values()), complaint)
    object.__setattr__(config, name, MappingProxyType(numbers))


def sendable(config: Any) -> tuple[Any, ...]:
    """What `__reduce__` returns: a mapping proxy cannot be sent to another process, a dict can."""
    values: list[Any] = [getattr(config, one.name) for one in fields(config)]
    return config.__class__, tuple(map(plain, values))


def plain(value: Any) -> Any:
    """A dict in place of a mapping that cannot be written."""
    return dict(cast("Mapping[Any, Any]", value)) if isinstance(value, MappingProxyType) else value
