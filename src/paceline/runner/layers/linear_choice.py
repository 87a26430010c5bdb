"""Choose the kernels of a model's linears on a CPU."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial

from paceline.core.errors import ConfigError
from paceline.runner.layers.linear import DenseLinear, Linear, LinearParts
from paceline.runner.layers.native_linear import NativeLinear
from paceline.runner.layers.native_stack import NATIVE
from paceline.runner.layers.packing import PackedStore
from paceline.runner.models.describe import describe
from paceline.runner.native.library import is_available
from paceline.runner.weights.checkpoint import Checkpoint

Build = Callable[[LinearParts], Linear | None]  # None: unsupported weights


@dataclass(frozen=True, slots=True)
class CPUKernel:
    """A kernel of linears.

    build         returns a linear, or None if it does not support its weights
    is_invariant  the result of a row has the same bits alone and beside any other rows
    """

    build: Build
    is_invariant: bool


AUTO, FLOAT32, INT8 = "auto", "float32", "int8"
# By setting: the first kernel that supports a linear computes it. "int8" keeps weights in 4 bits
# where that loses nothing.
KERNELS: Mapping[str, tuple[CPUKernel, ...]] = {
    FLOAT32: (CPUKernel(DenseLinear.of, False), CPUKernel(NativeLinear.in_float32, True)),
    INT8: (CPUKernel(NativeLinear.of, True),),
}


@dataclass(frozen=True, slots=True)
class LinearBuilder:
    """Builds each linear with the first kernel that supports it."""

    builds: tuple[Build, ...]

    @staticmethod
    def of(
        weights: str, packed: PackedStore | None = None, is_invariant: bool = False
    ) -> "LinearBuilder":
        """A builder for a setting; `packed` stores the packed weights of native linears. An
        invariant builder takes invariant kernels only."""
        if packed is not None and weights == INT8:
            return LinearBuilder((partial(NativeLinear.of, packed=packed),))
        kernels = KERNELS[weights]
        return LinearBuilder(
            tuple(one.build for one in kernels if one.is_invariant or not is_invariant)
        )

    def __call__(self, parts: LinearParts) -> Linear:
        for build in self.builds:
            if (linear := build(parts)) is not None:
                return linear
        raise ConfigError(f"no kernel of this CPU computes {parts.name}")


@dataclass(frozen=True, slots=True)
class LinearChoice:
    """The chosen kernels, and the reason."""

    name: str
    reason: str

    @property
    def is_native(self) -> bool:
        return self.name == INT8

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})"


def choose(name: str, checkpoint: Checkpoint) -> LinearChoice:
    """The kernels of a setting; "auto" keeps the precision of the file."""
    if name == AUTO:
        return automatic(checkpoint)
    if name not in KERNELS:
        known = [AUTO, *KERNELS]
        close = get_close_matches(name, known, 1, cutoff=0.3)
        hint = f"did you mean {close[0]!r}?" if close else f"choose {', '.join(known)}"
        raise ConfigError(f"unknown weights {name!r}: {hint}")
    return LinearChoice(name, "as requested")


def automatic(checkpoint: Checkpoint) -> LinearChoice:
    """The choice for "auto", which depends only on the file and on the kernels available."""
    if not checkpoint.is_quantized:
        return LinearChoice(FLOAT32, "as precise as the file; --weights int8 is faster")
    if not is_available():
        return LinearChoice(FLOAT32, "the int8 kernels cannot be compiled here")
    if missing := NATIVE.supports(describe(checkpoint.config)):
        return LinearChoice(INT8, f"the weights are quantized; torch computes the rest: {missing}")
    return LinearChoice(INT8, "the weights are quantized")
