"""The interface of weight formats, and their loader.

Nothing here imports torch, because descriptions of models refer to formats, and front ends use
descriptions. So tensors and matrices are untyped here.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, ClassVar

from paceline.core import plugins
from paceline.core.errors import ConfigError
from paceline.runner.models.tensor_spec import TensorSpec

Read = Callable[[TensorSpec], Any]  # reads this rank's part of a stored tensor to the device
PACKAGE = "paceline.runner.formats"  # one file per format, found by its name
EXPERTS = r".*\.experts\..*"  # names of their modules


class WeightFormat(ABC):
    """How a checkpoint stores the weights of a linear."""

    name: ClassVar[str]
    of_experts: ClassVar[bool] = False  # only for linears of experts

    def stored(self, weight: TensorSpec) -> tuple[TensorSpec, ...]:
        """The tensors that store the weights of a linear, or a part of them."""
        return (weight,)

    @abstractmethod
    def read(self, weight: TensorSpec, read: Read) -> Any:
        """Read a `Matrix`. ConfigError if a tensor has invalid values."""

    @classmethod
    def of_config(cls, config: Mapping[str, Any]) -> "Quantization":
        """The formats of linears, from the `quantization_config` of a checkpoint. ConfigError if it
        is not supported."""
        raise ConfigError(f"checkpoints in {cls.name!r} cannot be read")

    def quantize(self, weight: Any) -> Any:
        """Quantize weights [outputs, inputs] of a plain checkpoint to a `Matrix`."""
        raise ConfigError(f"a plain checkpoint cannot be loaded as {self.name!r}")


@dataclass(frozen=True, slots=True)
class QuantizedOnLoad(WeightFormat):
    """The format of plain checkpoints whose linears are quantized on load."""

    name: ClassVar[str] = "on load"
    format: WeightFormat

    def read(self, weight: TensorSpec, read: Read) -> Any:
        return self.format.quantize(read(weight).float())


@dataclass(frozen=True, slots=True)
class Quantization:
    """The formats of a model's linears, by module name.

    format          of linears in layers that match no rule; None: plain weights
    rules           patterns of module names with formats; the first match counts
    has_kv_scales   does the checkpoint have scales for an fp8 KV cache?
    """

    format: WeightFormat | None = None
    rules: tuple[tuple[str, WeightFormat | None], ...] = ()
    has_kv_scales: bool = False

    def format_of(self, module: str) -> WeightFormat | None:
        found = (one for pattern, one in self.rules if re.fullmatch(pattern, module))
        return next(found, self.format)


def plain_rules(modules: Sequence[str] | None) -> tuple[tuple[str, None], ...]:
    """Rules for modules that stay plain: by full names, suffixes, or enclosing modules."""
    return tuple((rf"(.*\.)?{re.escape(name)}(\..*)?", None) for name in modules or ())


UNQUANTIZED = Quantization()
KV_SCHEME = {
    "num_bits": 8,
    "type": "float",
    "strategy": "tensor",
    "dynamic": False,
    "symmetric": True,
}


def has_kv_scales(method: str, config: Mapping[str, Any]) -> bool:
    """Does a checkpoint have a scale for the keys of a layer and one for the values?"""
    scheme = config.get("kv_cache_scheme")
    if not scheme:
        return False
    given = {name: scheme.get(name, value) for name, value in KV_SCHEME.items()}
    if given != KV_SCHEME:
        raise ConfigError(
            f"{method}: kv_cache_scheme {given} is not supported; supported is {KV_SCHEME}"
        )
    return True


def on_load(format: WeightFormat) -> Quantization:
    """Quantize plain weights to a format on load."""
    modules = EXPERTS if format.of_experts else ".*"
    return Quantization(None, ((modules, QuantizedOnLoad(format)),))


def known() -> list[str]:
    """The names of all formats."""
    return [one.name for one in iter_modules(import_module(PACKAGE).__path__)]


def load(name: str) -> type[WeightFormat]:
    """Load a format by its module name in `formats`, or by the dotted path of a class."""
    found: Any = plugins.load("weight format", name, PACKAGE, WeightFormat)
    return found


def load_for_plain(name: str) -> WeightFormat:
    """Load a format to which plain weights can be quantized."""
    kind = load(name)
    if kind.quantize is WeightFormat.quantize:
        able = (one for one in known() if load(one).quantize is not WeightFormat.quantize)
        raise ConfigError(
            f"the weights of a plain checkpoint cannot be quantized to {name!r}; choose "
            f"{', '.join(able)}"
        )
    return kind()
