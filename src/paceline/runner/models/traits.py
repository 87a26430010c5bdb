"""Traits that all models of an architecture have in common."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from paceline.core.errors import ConfigError
from paceline.runner.models.config_entries import ConfigEntries
from paceline.runner.models.experts import ExpertTraits
from paceline.runner.models.linear_spec import Activation
from paceline.runner.models.states.state_sizes import StateSizes
from paceline.runner.vision.spec import VisionSpec

TABLES = "paceline.runner.models.architectures"
NEAR = 0.65  # how alike a name must be to be the nearest one


@dataclass(frozen=True, slots=True)
class DecoderNames:
    """Prefix of the decoder's tensors in HF's files.

    `older` is the prefix in files of older versions of transformers, and `older_head` the head;
    empty: the same. `layers` is what the names of a layer begin with, behind the prefix.
    """

    prefix: str = "model"
    older: str = ""
    older_head: str = ""
    layers: str = "layers.{}"


# Describes a tower by config.json, the width of the decoder, and settings of the image processor.
DescribeTower = Callable[[ConfigEntries, int, Mapping[str, Any]], VisionSpec]


@dataclass(frozen=True, slots=True)
class NormNames:
    """The norms of a layer by their names in HF's files; empty: there is none.

    One name stands for different norms in Llama and in Gemma, so `Traits.names` cannot say this.

    attention, mlp              of the residual stream, before them
    attention_output, mlp_output before they are added to the residual stream
    mlp_in_gguf                 the one before the MLP in GGUF files
    last_in_gguf                the one before the head there
    """

    attention: str = "input_layernorm"
    attention_output: str = ""
    mlp: str = "post_attention_layernorm"
    mlp_output: str = ""
    mlp_in_gguf: str = "ffn_norm"
    last_in_gguf: str = "output_norm"


# Norms on both sides, as Gemma has them, and norms behind alone.
AROUND = NormNames(
    attention_output="post_attention_layernorm",
    mlp="pre_feedforward_layernorm",
    mlp_output="post_feedforward_layernorm",
)
BEHIND = NormNames("", "post_attention_layernorm", "", "post_feedforward_layernorm")


@dataclass(frozen=True, slots=True)
class QKNorms:
    """What norms of queries and keys are like: see `HeadNorms`.

    bare   they have no weights, and layers that do not rotate have no such norms
    """

    whole: bool = False
    rotated: bool = False
    bare: bool = False


@dataclass(frozen=True, slots=True)
class MTPNames:
    """Names of the parts of an MTP head in HF's files: see `MTPSpec`.

    stem           what all of them begin with; {prefix} is that of the decoder, and {layers} the
                   number of its layers
    layer          what the names of its layer begin with, behind the stem
    hidden_first   the linear reads the hidden state first, and then the embedding
    """

    stem: str = "{prefix}.layers.{layers}"
    layer: str = ""
    embedding_norm: str = "enorm"
    hidden_norm: str = "hnorm"
    linear: str = "eh_proj"
    norm: str = "shared_head.norm"
    hidden_first: bool = False


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

    defaults           entries of config.json that a file may leave out
    gguf               its name in GGUF files; empty: the same
    gguf_defaults      entries that headers of GGUF files may leave out
    activation         of the MLP
    gated_mlp          it has a gate; otherwise it has up and down alone
    qkv_bias           the linears for queries, keys and values have biases
    output_bias        attention_bias is for the linear after attention too *
    qk_norm            queries and keys have norms
    qk_norms           what these norms are like
    value_norm         each head of values has an RMS norm without a weight
    norms              norms of a layer
    layer_norm         norms subtract the mean
    norm_bias          norms have biases
    norm_offset        a norm multiplies by its weight plus this
    parallel           attention and MLP read the same input
    layer_scale        each layer has a factor of the residual stream
    adjacent_pairs     pairs of rotated dimensions are side by side
    unrotated_every    n: queries and keys of layers n, 2n, … do not rotate; 0: all do *
    unrotated_global   they do not rotate in layers without a window, if others have one
    scaled_embedding   times the square root of the width
    tied_embedding     the head is the embedding *
    global_every       n: layers n, 2n, … see the whole context, the others a window; 0: none does *
    chunked_windows    a window begins at a multiple of its length: see `DecoderSpec.chunk`
    local_theta        the rotary base of layers with a window, if it differs *
    score_cap          soft cap of attention scores *
    logit_cap          soft cap of logits *
    divided_logits     GGUF files have a number that logits are divided by
    experts            layers may be MoE
    latent             attention has latent vectors: see `LatentSizes`
    sinks              each head has a score that takes weight and has no value
    gated_attention    what a head computes is multiplied by the sigmoid of a gate, which follows
                       its query
    fused_linears      queries, keys, values are one tensor, and so are gate and up
    fused_gate_up      gate and up are one tensor
    paired_in_gguf     GGUF files store rows of queries and keys in rotary pairs
    decoder            what the names of its tensors begin with
    vision             the tower that reads images, if it has one
    text_model         text_config names the architecture of the decoder, which has all other
                       traits; this one, if it names none
    text_part          where the decoder is in a model with images, if it is a text model too
    states             reads the sizes of layers with a state, if it has such layers
    entries            entries of config.json that it has under other names, or by default
    header             entries of config.json that a GGUF header says; None: they are those of all
                       architectures, and files of models with states are not read
    names              of modules, where they are not those of Llama: pairs of Llama's and its own
    ignored            what the names of tensors begin with that are not computed
    mtp                names of its head that drafts, which is not computed with the model; None:
                       its models have none

    * unless the file says otherwise
    """

    defaults: tuple[tuple[str, Any], ...] = ()
    gguf: str = ""
    gguf_defaults: tuple[tuple[str, Any], ...] = ()
    activation: Activation = "silu"
    gated_mlp: bool = True
    qkv_bias: bool = False
    output_bias: bool = True
    qk_norm: bool = False
    qk_norms: QKNorms = QKNorms()
    value_norm: bool = False
    norms: NormNames = NormNames()
    layer_norm: bool = False
    norm_bias: bool = False
    norm_offset: float = 0.0
    parallel: bool = False
    layer_scale: bool = False
    adjacent_pairs: bool = False
    unrotated_every: int = 0
    unrotated_global: bool = False
    scaled_embedding: bool = False
    tied_embedding: bool = False
    global_every: int = 1
    chunked_windows: bool = False
    local_theta: float | None = None
    score_cap: float | None = None
    logit_cap: float | None = None
    divided_logits: bool = False
    experts: ExpertTraits | None = None
    latent: bool = False
    sinks: bool = False
    gated_attention: bool = False
    fused_linears: bool = False
    fused_gate_up: bool = False
    paired_in_gguf: bool = False
    decoder: DecoderNames = DecoderNames()
    vision: DescribeTower | None = field(default=None, repr=False)
    text_model: str = ""
    text_part: TextPart | None = None
    states: Callable[[ConfigEntries], StateSizes] | None = field(default=None, repr=False)
    entries: Callable[[ConfigEntries], Mapping[str, Any]] | None = field(default=None, repr=False)
    header: Callable[[ConfigEntries], Mapping[str, Any]] | None = field(default=None, repr=False)
    names: tuple[tuple[str, str], ...] = ()
    ignored: tuple[str, ...] = ()
    mtp: MTPNames | None = None

    def name(self, module: str) -> str:
        """The name of a module of Llama in this architecture."""
        return dict(self.names).get(module, module)

    def windows(
        self, layers: int, window: int | None, global_every: int | None = None
    ) -> tuple[int | None, ...]:
        """The window of each layer."""
        every = self.global_every if global_every is None else global_every
        every = every or layers + 1
        return tuple(None if (layer + 1) % every == 0 else window for layer in range(layers))

    def unrotated(
        self, windows: tuple[int | None, ...], every: int | None = None
    ) -> tuple[bool, ...]:
        """Whether queries and keys of each layer stay as they are."""
        if self.unrotated_global and any(windows):
            return tuple(window is None for window in windows)
        every = (self.unrotated_every if every is None else every) or len(windows) + 1
        return tuple((layer + 1) % every == 0 for layer in range(len(windows)))


def architectures() -> Mapping[str, Traits]:
    """The traits of every architecture, by name: the tables of all modules in `architectures`."""
    return _read_tables(tuple(import_module(TABLES).__path__))


@cache
def _read_tables(folders: tuple[str, ...]) -> Mapping[str, Traits]:
    found: dict[str, Traits] = {}
    for module in iter_modules(folders):
        found |= import_module(f"{TABLES}.{module.name}").ARCHITECTURES
    return dict(sorted(found.items()))


def find(architecture: str) -> Traits:
    """The traits of an architecture. ConfigError if there is none of that name."""
    if (traits := architectures().get(architecture)) is None:
        raise unsupported(architecture)
    return traits


def named_in_gguf(name: str) -> str:
    """The architecture that GGUF files call so."""
    return next((one for one, traits in architectures().items() if traits.gguf == name), name)


def unsupported(architecture: str) -> ConfigError:
    known = list(architectures())
    nearest = f"; the nearest is {near}" if (near := nearest_to(architecture, known)) else ""
    listed = ", ".join(known)
    return ConfigError(
        f"architecture {architecture!r} is not supported{nearest}; supported are {listed}"
    )


def nearest_to(name: str, known: Iterable[str]) -> str:
    """The known name that is most like a name, whatever the case of its letters; empty: none is."""
    by_stem = {one.removesuffix("Model").lower(): one for one in known}
    near = get_close_matches(name.lower(), by_stem, 1, NEAR)
    return by_stem[near[0]] if near else ""
