"""Traits that all models of an architecture have in common."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from paceline.core.errors import ConfigError
from paceline.runner.models.architecture import Activation
from paceline.runner.models.config_entries import ConfigEntries
from paceline.runner.models.experts import ExpertTraits
from paceline.runner.vision.spec import VisionSpec

TABLES = "paceline.runner.models.architectures"


@dataclass(frozen=True, slots=True)
class DecoderNames:
    """Prefix of the decoder's tensors in HF's files.

    `older` is the prefix in files of older versions of transformers, and `older_head` the head;
    empty: the same.
    """

    prefix: str = "model"
    older: str = ""
    older_head: str = ""


# Describes a tower by config.json, the width of the decoder, and settings of the image processor.
DescribeTower = Callable[[ConfigEntries, int, Mapping[str, Any]], VisionSpec]


@dataclass(frozen=True, slots=True)
class TextPart:
    """The decoder within a model with images, where the images are not computed, or not on every
    device.

    defaults   entries of config.json that its text_config may leave out
    images     what the names of all other tensors begin with
    vision     the tower that reads images; None: images are not computed
    """

    decoder: DecoderNames
    defaults: tuple[tuple[str, Any], ...]
    images: tuple[str, ...]
    vision: DescribeTower | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Traits:
    """Differences of an architecture from the plain decoder: pre-norm, rotary, gated MLP.

    activation         of the MLP
    qkv_bias           the linears for queries, keys and values have biases
    qk_norm            each head of queries and keys has a norm
    post_norms         attention and MLP have a norm before they are added
    norm_offset        a norm multiplies by its weight plus this
    scaled_embedding   times the square root of the width
    tied_embedding     the head is the embedding *
    global_every       n: layers n, 2n, … see the whole context, the others a window; 0: none does *
    local_theta        the rotary base of layers with a window, if it differs *
    score_cap          soft cap of attention scores *
    logit_cap          soft cap of logits *
    experts            layers may be MoE
    sinks              each head has a score that takes weight and has no value
    fused_linears      queries, keys, values are one tensor, and so are gate and up
    paired_in_gguf     GGUF files store rows of queries and keys in rotary pairs
    decoder            what the names of its tensors begin with
    vision             the tower that reads images, if it has one
    text_model         text_config names the architecture of the decoder, which has all other
                       traits; this one, if it names none
    text_defaults      entries that text_config may leave out
    text_part          where the decoder is in a model with images, if it is a text model too

    * unless the file says otherwise
    """

    activation: Activation = "silu"
    qkv_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False
    norm_offset: float = 0.0
    scaled_embedding: bool = False
    tied_embedding: bool = False
    global_every: int = 1
    local_theta: float | None = None
    score_cap: float | None = None
    logit_cap: float | None = None
    experts: ExpertTraits | None = None
    sinks: bool = False
    fused_linears: bool = False
    paired_in_gguf: bool = False
    decoder: DecoderNames = DecoderNames()
    vision: DescribeTower | None = field(default=None, repr=False)
    text_model: str = ""
    text_defaults: tuple[tuple[str, Any], ...] = ()
    text_part: TextPart | None = None

    def windows(
        self, layers: int, window: int | None, global_every: int | None = None
    ) -> tuple[int | None, ...]:
        """The window of each layer."""
        every = self.global_every if global_every is None else global_every
        every = every or layers + 1
        return tuple(None if (layer + 1) % every == 0 else window for layer in range(layers))


def architectures() -> dict[str, Traits]:
    """The traits of every architecture, by name: the tables of all modules in `architectures`."""
    found: dict[str, Traits] = {}
    for module in iter_modules(import_module(TABLES).__path__):
        found |= import_module(f"{TABLES}.{module.name}").ARCHITECTURES
    return dict(sorted(found.items()))


def find(architecture: str) -> Traits:
    """The traits of an architecture. ConfigError if there is none of that name."""
    if (traits := architectures().get(architecture)) is None:
        raise unsupported(architecture)
    return traits


def unsupported(architecture: str) -> ConfigError:
    known = ", ".join(architectures())
    return ConfigError(f"architecture {architecture!r} is not supported; supported are {known}")
