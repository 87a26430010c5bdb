"""How checkpoints store the weights of linears: what a format reads, and how one is found by name.

Nothing here imports torch, because descriptions of models name formats, and front ends read
descriptions. So tensors and matrices have no types here.
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

Read = Callable[[TensorSpec], Any]  # gives a tensor as it is stored, of this rank, on the device
PACKAGE = "paceline.runner.formats"  # one file per format, found by its name
EXPERTS = r".*\.experts\..*"  # names of their modules


class WeightFormat(ABC):
    """How a checkpoint stores the weights of a linear."""

    name: ClassVar[str]
    of_experts: ClassVar[bool] = False  # it is for linears of experts alone

    def stored(self, weight: TensorSpec) -> tuple[TensorSpec, ...]:
        """The tensors that a checkpoint has for the weights of a linear, or for a part of them."""
        return (weight,)

    @abstractmethod
    def read(self, weight: TensorSpec, read: Read) -> Any:
        """Read and check them; return a `Matrix`. ConfigError names a tensor with values that are
        not possible."""

    @classmethod
    def of_config(cls, config: Mapping[str, Any]) -> "Quantization":
        """Which linears have which format, by the `quantization_config` of a checkpoint.
        ConfigError names what is not known."""
        raise ConfigError(f"checkpoints in {cls.name!r} cannot be read")

    def quantize(self, weight: Any) -> Any:
        """The `Matrix` of weights of a plain checkpoint, [outputs, inputs]."""
        raise ConfigError(f"a plain checkpoint cannot be loaded as {self.name!r}")


@dataclass(frozen=True, slots=True)
class QuantizedOnLoad(WeightFormat):
    """Plain weights of a checkpoint, of which each linear is quantized when it has been read."""

    name: ClassVar[str] = "on load"
    format: WeightFormat

    def read(self, weight: TensorSpec, read: Read) -> Any:
        return self.format.quantize(read(weight).float())


@dataclass(frozen=True, slots=True)
class Quantization:
    """The format of each linear of a model, by the name of its module.

    format      of all linears of layers, if no rule says otherwise; None: their weights are plain
    rules       patterns of whole names, and the format of the first that matches
    has_kv_scales   the checkpoint has scales for an fp8 KV cache
    """

    format: WeightFormat | None = None
    rules: tuple[tuple[str, WeightFormat | None], ...] = ()
    has_kv_scales: bool = False

    def format_of(self, module: str) -> WeightFormat | None:
        found = (one for pattern, one in self.rules if re.fullmatch(pattern, module))
        return next(found, self.format)


def plain_rules(modules: Sequence[str] | None) -> tuple[tuple[str, None], ...]:
    """Rules for modules that stay plain: by whole names, by their ends, or by what they are in."""
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
    """Whether a checkpoint has a scale for all keys of a layer, and one for all values."""
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
    """Plain weights that are quantized to a format while they are loaded."""
    modules = EXPERTS if format.of_experts else ".*"
    return Quantization(None, ((modules, QuantizedOnLoad(format)),))


def known() -> list[str]:
    """The names of all formats that checkpoints may have."""
    return [one.name for one in iter_modules(import_module(PACKAGE).__path__)]


def load(name: str) -> type[WeightFormat]:
    """Load a format by its module name in `formats`, or by the dotted path of a class."""
    found: Any = plugins.load("weight format", name, PACKAGE, WeightFormat)
    return found


def load_for_plain(name: str) -> WeightFormat:
    """A format that the weights of plain checkpoints can be quantized to."""
    kind = load(name)
    if kind.quantize is WeightFormat.quantize:
        able = (one for one in known() if load(one).quantize is not WeightFormat.quantize)
        raise ConfigError(
            f"the weights of a plain checkpoint cannot be quantized to {name!r}; choose "
            f"{', '.join(able)}"
        )
    return kind()
