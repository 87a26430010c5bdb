"""The entries of a config.json or a GGUF header, with errors that name them."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from paceline.core.errors import ConfigError

LAYERS, MOST_LAYERS = ("num_hidden_layers", "block_count"), 10_000


@dataclass(frozen=True, slots=True)
class ConfigEntries:
    """The entries of a file, by key. An entry of null counts as missing."""

    raw: Mapping[str, Any]
    where: str
    prefix: str = ""

    def get(self, key: str, default: Any = None) -> Any:
        value = self.raw.get(self.prefix + key)
        return default if value is None else value

    def need(self, key: str) -> Any:
        value = self.get(key)
        if value is None:
            raise ConfigError(f"{self.where} has no {self.prefix + key!r}")
        return value

    def number(self, key: str, default: int | None = None) -> int:
        """A size or a number of things, which is positive."""
        value = self.need(key) if default is None else self.get(key, default)
        if type(value) is not int or value < 1:
            raise ConfigError(
                f"{self.where}: {self.prefix + key} is {value!r}; it must be a positive integer"
            )
        if key in LAYERS and value > MOST_LAYERS:
            raise ConfigError(
                f"{self.where}: {self.prefix + key} is {value}; the largest supported "
                f"value is {MOST_LAYERS}"
            )
        return value


@contextmanager
def expected(where: str) -> Generator[None]:
    """Turn errors of wrong types into a ConfigError."""
    try:
        yield
    except ConfigError:
        raise
    except (TypeError, AttributeError, LookupError, ValueError, ArithmeticError) as error:
        raise ConfigError(f"{where} has a value of the wrong type: {error}") from None
