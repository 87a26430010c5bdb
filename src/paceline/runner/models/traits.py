"""What the models of one architecture have in common, whatever their size."""

from dataclasses import dataclass
from importlib import import_module

from paceline.core.errors import ConfigError
from paceline.runner.models.architecture import Activation


@dataclass(frozen=True, slots=True)
class Traits:
    """How an architecture differs from the plain decoder: pre-norm, rotary, gated MLP.

    `global_every` counts layers: the n-th, 2n-th, … see the whole context, the others a window;
    1 means that all see it, 0 that none does. `local_theta` is the rotary base of layers with a
    window, where it is not that of the others.
    """

    activation: Activation = "silu"
    qkv_bias: bool = False
    qk_norm: bool = False  # queries and keys are normalised head by head
    post_norms: bool = False  # so is what attention and MLP add to the residual
    norm_offset: float = 0.0  # what a norm multiplies by, less the weight in the file
    scaled_embedding: bool = False  # by the square root of the width
    tied_embedding: bool = False  # unless the file says
    global_every: int = 1  # unless the file says
    local_theta: float | None = None  # unless the file says
    paired_in_gguf: bool = False  # GGUF has rows of q and k in the order of rotary pairs


def find(architecture: str) -> Traits:
    """The traits by module name in `models`, or by dotted path to a module."""
    name = architecture if "." in architecture else f"paceline.runner.models.{architecture}"
    try:
        traits = import_module(name).TRAITS
    except (ImportError, AttributeError):
        raise ConfigError(f"architecture {architecture!r} is not supported") from None
    if not isinstance(traits, Traits):
        raise ConfigError(f"{name}.TRAITS is not a Traits object")
    return traits
