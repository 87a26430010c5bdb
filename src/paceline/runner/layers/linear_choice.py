"""Chooses the kind of matrix product that a model on a CPU is built of."""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from paceline.core.errors import ConfigError
from paceline.runner.layers.linear import DenseLinear, LinearKind
from paceline.runner.layers.native import NativeLinear
from paceline.runner.layers.native_stack import NATIVE
from paceline.runner.models.describe import describe
from paceline.runner.native.library import is_available
from paceline.runner.weights.checkpoint import Checkpoint

# "int8" keeps weights in 4 bits where these lose nothing.
KINDS: Mapping[str, LinearKind] = {"float32": DenseLinear, "int8": NativeLinear}
AUTO = "auto"


@dataclass(frozen=True, slots=True)
class LinearChoice:
    """A kind of product, and why it was chosen."""

    name: str
    reason: str

    @property
    def kind(self) -> LinearKind:
        return KINDS[self.name]

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})"


def choose(name: str, checkpoint: Checkpoint) -> LinearChoice:
    """The kind with this name; for "auto", the one that keeps the precision of the file."""
    if name == AUTO:
        return automatic(checkpoint)
    if name not in KINDS:
        known = [AUTO, *KINDS]
        close = get_close_matches(name, known, 1, cutoff=0.3)
        hint = f"did you mean {close[0]!r}?" if close else f"choose {', '.join(known)}"
        raise ConfigError(f"unknown weights {name!r}: {hint}")
    return LinearChoice(name, "as requested")


def automatic(checkpoint: Checkpoint) -> LinearChoice:
    """The same at every start: it depends on the file, and on whether there are kernels for it."""
    if not checkpoint.is_quantized:
        return LinearChoice("float32", "as precise as the file; --weights int8 is faster")
    if missing := NATIVE.supports(describe(checkpoint.config)):
        return LinearChoice("float32", f"the int8 kernels do not support this model: {missing}")
    if not is_available():
        return LinearChoice("float32", "the int8 kernels cannot be compiled here")
    return LinearChoice("int8", "the file is quantized")
