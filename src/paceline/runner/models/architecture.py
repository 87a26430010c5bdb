"""The description of a decoder, tensor by tensor, from which every backend is built."""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, ClassVar, TypeVar, cast

from paceline.core.errors import ConfigError
from paceline.runner.models.experts import MoESpec
from paceline.runner.models.latent import LatentAttentionSpec
from paceline.runner.models.linear_spec import (
    EVERY_BACKEND,
    OPTIONAL,
    Activation,
    LinearSpec,
    Multiplier,
    NormSpec,
)
from paceline.runner.models.rope import QueryGrowth, Rope
from paceline.runner.models.states.state_sizes import StateSpec
from paceline.runner.models.tensor_spec import TensorSpec
from paceline.runner.vision.spec import VisionSpec

Part = TypeVar("Part")


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """Norms of queries and of keys, before the rotation.

    whole   one norm over all heads of queries, and one over all heads of keys, not of each head
    rotated queries and keys are rotated first
    """

    query: NormSpec
    key: NormSpec
    whole: bool = False
    rotated: bool = False

    def __post_init__(self) -> None:
        if not self.whole and self.query.floor != self.key.floor:
            raise ConfigError(
                "norms of queries and keys must have the same eps and width: "
                f"{self.query}, {self.key}"
            )

    @property
    def floor(self) -> float:
        return self.query.floor


# In the classes below, a field without a default is implemented by every backend. A field with a
# default is a feature: the default is the plain decoder, and a backend lists the features that it
# implements. So is None in an OPTIONAL field. `layer_groups` compares the two when a model
# is loaded.


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """x + output_norm(output(attend(rotate(head_norms(qkv(norm(x)))))))

    norm               of the residual stream; None: there is none
    qkv                queries with their gates, if there are some, keys and values, in this order
    heads, kv_heads    of queries; of keys and values
    head_dim           of each head
    rope               of queries and keys
    rotary_dim         dimensions of each head with a rotary embedding, from the first one on
    scale              factor of the scores before the softmax
    output             from all heads to the width of the residual stream
    head_norms         of queries and keys
    window             positions that one position sees, itself included; None: all
    score_cap          a score s becomes cap * tanh(s / cap); None: it stays as it is
    output_norm        of what is added to the residual stream
    second_norm        of a second input, which qkv reads beside the first: heads that draft
    sinks              [heads]; an extra softmax score of each head that has no value
    gated              what a head computes is multiplied by the sigmoid of its gate; in qkv, the
                       gate of a head follows its query
    reads              layer whose keys and values it reads; None: it has its own
    value_norm         eps of an RMS norm of each head of values; None: there is none
    growth             of queries with their position, after the rotation
    adjacent_pairs     a checkpoint has pairs of rotated dimensions side by side, x0 y0 x1 y1 …
    """

    norm: NormSpec | None = field(metadata={OPTIONAL: True})
    qkv: LinearSpec
    heads: int
    kv_heads: int
    head_dim: int
    rope: Rope
    rotary_dim: int
    scale: float
    output: LinearSpec
    head_norms: HeadNorms | None = None
    window: int | None = None
    score_cap: float | None = None
    output_norm: NormSpec | None = None
    second_norm: NormSpec | None = None
    sinks: TensorSpec | None = None
    gated: bool = False
    reads: int | None = None
    value_norm: float | None = None
    growth: QueryGrowth | None = None
    adjacent_pairs: bool = field(default=False, metadata={EVERY_BACKEND: True})

    @property
    def gates(self) -> int:
        """Of heads."""
        return self.heads if self.gated else 0

    @property
    def own_kv_heads(self) -> int:
        """Heads of keys, and of values, that it computes."""
        return self.kv_heads if self.reads is None else 0


@dataclass(frozen=True, slots=True)
class XIELU:
    """An activation with learned numbers, one number each:

    x > 0   softplus(up) * x * x + beta * x
    else    (beta + softplus(down)) * (exp(min(x, eps)) - 1 - x) + beta * x
    """

    up: TensorSpec
    down: TensorSpec
    beta: TensorSpec
    eps: TensorSpec


@dataclass(frozen=True, slots=True)
class MLPSpec:
    """x + output_norm(down(activation(gate) * up)), where gate and up are gate_up(norm(x)).

    norm    of the residual stream; None: there is none
    gated   otherwise there is no gate, gate_up has up alone, and down reads activation(up)
    xielu   the activation instead
    sparsity  gates count by which they exceed that of so large a part of all, if gates of a
              position are normally distributed; others are 0
    """

    norm: NormSpec | None = field(metadata={OPTIONAL: True})
    gate_up: LinearSpec
    down: LinearSpec
    activation: Activation = "silu"
    output_norm: NormSpec | None = None
    gated: bool = True
    xielu: XIELU | None = None
    sparsity: float = 0.0

    @property
    def width(self) -> int:
        return self.down.inputs


@dataclass(frozen=True, slots=True)
class PerLayerInputs:
    """(norm(linear(x)) + scale * embedding(token)) / sqrt(2): an input of each layer. x is the
    residual stream where it begins.

    embedding     [vocab, layers * width]
    linear        to the inputs of all layers, [layers * width, width of the residual stream]
    norm          of the input of each layer
    image_token   the token of positions of images
    """

    embedding: TensorSpec
    scale: float
    linear: LinearSpec
    norm: NormSpec
    image_token: int


@dataclass(frozen=True, slots=True)
class PerLayerSpec:
    """x + norm(output(activation(gate(x)) * input)), at the end of a layer.

    scale   [width]; with several streams, the gate reads the first of them times this, and the
            result is added to all others; None: there is one stream
    """

    gate: LinearSpec
    output: LinearSpec
    norm: NormSpec
    activation: Activation = "silu"
    scale: TensorSpec | None = None


@dataclass(frozen=True, slots=True)
class AltUpSpec:
    """Streams of a decoder. The first is the embedding. Another is a linear of it, with its length;
    after all layers, one linear of each is added to the first, with its length, and the sum is
    divided by their number.

    expand     of each stream but the first: [width, width]
    contract   the same, after all layers
    """

    expand: tuple[LinearSpec, ...]
    contract: tuple[LinearSpec, ...]


@dataclass(frozen=True, slots=True)
class LayerAltUpSpec:
    """A layer computes the first of n streams, and predicts and corrects all of them:

    predict   streams += predict(route(first)) @ streams, where predict returns [n, n]
    correct   streams += (1 + correct(route(layer(first)))) * (layer(first) - first)
    route     tanh(router(norm(x)) / width)
    """

    norm: NormSpec
    router: LinearSpec
    predict: TensorSpec  # [n * n, n]
    correct: TensorSpec  # [n, n]


@dataclass(frozen=True, slots=True)
class LaurelSpec:
    """(x + norm(x) + output_norm(up(down(norm(x))))) / sqrt(2), behind attention."""

    FEATURE: ClassVar[str] = "laurel"

    norm: NormSpec
    down: LinearSpec
    up: LinearSpec
    output_norm: NormSpec


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """Attention of one kind or the other, or a mixer with a state, or both of these of the same
    input; then an MLP. A plain decoder has attention and an MLP in each layer.

    parallel   attention and MLP read the residual stream before the layer; their norms are the same
    input      what the layer does with its own input; None: it has none
    scale      [1]; factor of the residual stream after the layer
    altup      how the layer predicts and corrects several residual streams; None: there is one
    """

    attention: AttentionSpec | None = field(metadata={OPTIONAL: True})
    mlp: MLPSpec | MoESpec | None = field(metadata={OPTIONAL: True})
    parallel: bool = False
    scale: TensorSpec | None = None
    input: PerLayerSpec | None = None
    latent: LatentAttentionSpec | None = None
    state: StateSpec | None = None
    laurel: LaurelSpec | None = None
    altup: LayerAltUpSpec | None = None

    @property
    def mixers(self) -> tuple[AttentionSpec | LatentAttentionSpec | StateSpec | LaurelSpec, ...]:
        """What reads the input of the layer, in the order of sums."""
        found = self.attention, self.latent, self.state, self.laurel
        return tuple(one for one in found if one is not None)


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """A whole decoder: embedding, layers, norm, head.

    architecture       its name, for messages
    embedding          [vocab, width]
    embedding_scale    factor of the embedding where the residual stream begins
    rounds_scale       this factor is rounded to the type of the model
    layers             in the order of computation
    norm               of the residual stream, before the head
    head               to logits; with tied weights, its tensor is the embedding
    altup              several residual streams; None: there is one
    inputs             of each layer, beside the residual stream; None: there are none
    logit_scale        factor of the logits
    logit_cap          a logit x becomes cap * tanh(x / cap); None: it stays as it is
    chunk              layers with a window see no position before the last multiple of this, which
                       is their window; None: windows begin anywhere
    vision             the tower that turns images into embeddings; None: the model has no images
    """

    architecture: str
    embedding: TensorSpec
    layers: tuple[LayerSpec, ...]
    norm: NormSpec
    head: LinearSpec
    embedding_scale: float = 1.0
    rounds_scale: bool = field(default=False, metadata={EVERY_BACKEND: True})
    altup: AltUpSpec | None = None
    inputs: PerLayerInputs | None = None
    logit_scale: float = 1.0
    logit_cap: float | None = None
    chunk: int | None = None
    vision: VisionSpec | None = None

    @property
    def width(self) -> int:
        return self.norm.width

    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """Every tensor once, in the order of computation."""
        return tuple({tensor.name: tensor for tensor in stored_tensors(self)}.values())


def stored_tensors(spec: Any) -> Iterator[TensorSpec]:
    """Every tensor that a checkpoint has for a part of a description, in order."""
    for part in parts_of(spec, (TensorSpec, LinearSpec)):
        if isinstance(part, LinearSpec):
            yield from part.tensors
        else:
            yield part


def attentions(spec: Any) -> Iterator[AttentionSpec]:
    """The attention of all layers in a description that have some."""
    return parts_of(spec, AttentionSpec)


def parts_of(spec: Any, kind: type[Part] | tuple[type[Part], ...]) -> Iterator[Part]:
    """Every part of these kinds in a description, in order; not the parts of such a part."""
    if isinstance(spec, kind):
        yield spec
    elif is_dataclass(spec):
        for field in fields(spec):
            yield from parts_of(getattr(spec, field.name), kind)
    elif isinstance(spec, tuple):
        for part in cast("tuple[Any, ...]", spec):
            yield from parts_of(part, kind)


@dataclass(frozen=True, slots=True)
class Multipliers:
    """Factors of the embedding, of what layers add to the residual stream, of logits, and of what
    linears compute, by the names of their modules in Llama."""

    embedding: float = 1.0
    residual: float = 1.0
    logits: float = 1.0
    linears: tuple[tuple[str, Multiplier], ...] = ()


NO_MULTIPLIERS = Multipliers()


@dataclass(frozen=True, slots=True)
class InputSizes:
    """Token ids and width of the inputs of each layer; the token of positions of images."""

    vocab: int
    width: int
    image_token: int = 0


@dataclass(frozen=True, slots=True)
class AltUpSizes:
    """Sizes of a model with several residual streams.

    count         of streams
    laurel_rank   inputs of the second linear of LAuReL
    sparsity      of each layer: see `MLPSpec`
    """

    count: int
    laurel_rank: int
    sparsity: tuple[float, ...]
