"""The description of a decoder, tensor by tensor, from which every backend is built."""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from itertools import chain
from typing import Any, ClassVar, Literal, TypeVar, cast

from paceline.core.errors import ConfigError
from paceline.runner.models.rope import Rope
from paceline.runner.models.tensor_spec import TensorSpec
from paceline.runner.vision.spec import VisionSpec
from paceline.runner.weights.weight_format import WeightFormat

Activation = Literal["silu", "gelu_pytorch_tanh", "relu2", "xielu"]
Part = TypeVar("Part")
# In the metadata of fields: one that is no feature, and one without a default that may be None,
# which is a feature.
EVERY_BACKEND, OPTIONAL = "every backend", "optional"


@dataclass(frozen=True, slots=True)
class KVScale:
    """The scale of keys or values in an fp8 KV cache, folded into weights: some are divided by it
    and others multiplied, so that only what is cached changes.

    It is rounded up to a power of two, which changes no digit of a weight. Precision is not lost,
    because fp8 numbers have exponents of their own.
    """

    tensor: TensorSpec  # one number
    divides: bool
    has_bias: bool = True  # whether a bias is scaled too; not where the scale is that of the inputs


@dataclass(frozen=True, slots=True)
class NormSpec:
    """A root-mean-square norm: x / sqrt(mean(x * x) + eps) * (weight + offset) + bias.

    centred  x is taken minus its mean first, which makes this a layer norm
    """

    weight: TensorSpec  # [width]
    eps: float
    offset: float
    centred: bool = False
    bias: TensorSpec | None = None  # [width]
    scale: KVScale | None = field(default=None, metadata={EVERY_BACKEND: True})

    @property
    def width(self) -> int:
        return self.weight.shape[0]

    @property
    def floor(self) -> float:
        """The smallest length that the norm divides by: see `layers.norm`."""
        return (self.width * self.eps) ** 0.5


@dataclass(frozen=True, slots=True)
class LinearSpec:
    """One linear. Its outputs are those of several tensors, side by side."""

    weights: tuple[TensorSpec, ...]  # [outputs, inputs] each
    biases: tuple[TensorSpec, ...] = ()  # [outputs] each: one for every weight, or none
    # The format of every weight, None for plain ones; none: all are plain. Backends decode what
    # they have no kernel for.
    quantized: tuple[WeightFormat | None, ...] = field(default=(), metadata={EVERY_BACKEND: True})
    # The scale that is folded into every weight; none: no scale is.
    folded: tuple[KVScale | None, ...] = field(default=(), metadata={EVERY_BACKEND: True})

    def __post_init__(self) -> None:
        parts = (("biases", self.biases), ("formats", self.quantized), ("scales", self.folded))
        for what, given in parts:
            if given and len(given) != len(self.weights):
                raise ConfigError(
                    f"a linear of {len(self.weights)} weights has {len(given)} {what}; it needs "
                    "one for each or none"
                )

    @property
    def name(self) -> str:
        """The name of its first weight."""
        return self.weights[0].name

    @property
    def formats(self) -> tuple[WeightFormat | None, ...]:
        """The format of every weight; None: it is plain."""
        return self.quantized or (None,) * len(self.weights)

    @property
    def scales(self) -> tuple[KVScale | None, ...]:
        """The scale that is folded into every weight, if there is one."""
        return self.folded or (None,) * len(self.weights)

    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """All tensors that a checkpoint has for it."""
        pairs = zip(self.weights, self.formats, strict=True)
        stored = (
            (weight,) if format is None else format.stored(weight) for weight, format in pairs
        )
        scales = (scale.tensor for scale in self.folded if scale is not None)
        return (*chain.from_iterable(stored), *self.biases, *scales)

    @property
    def outputs(self) -> int:
        return sum(weight.shape[0] for weight in self.weights)

    @property
    def inputs(self) -> int:
        return self.weights[0].shape[1]


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
    qkv                queries, keys and values, in this order
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
    adjacent_pairs: bool = field(default=False, metadata={EVERY_BACKEND: True})


@dataclass(frozen=True, slots=True)
class LatentQuerySpec:
    """norm(linear(x)): a latent vector, of which all queries are linears."""

    linear: LinearSpec
    norm: NormSpec


@dataclass(frozen=True, slots=True)
class LatentAttentionSpec:
    """Attention whose keys and values are linears of one latent vector: see `LatentSizes`.

    norm                of the residual stream
    query               queries of all heads, of the residual stream or of `query_latent`
    latent              the latent vector, and then the key that rotates
    latent_norm         of the latent vector
    expand              from the latent vector to keys and values: of each head, first its key
    output              from all heads to the width of the residual stream
    heads               of queries, keys and values
    key_dim, value_dim  of each head; the rest of a query rotates
    rope                of this rest, and of the key that rotates
    adjacent_pairs      a checkpoint has pairs of rotated dimensions side by side
    scale               factor of the scores before the softmax
    query_latent        what `query` reads; None: the residual stream
    """

    FEATURE: ClassVar[str] = "mla"

    norm: NormSpec
    query: LinearSpec
    latent: LinearSpec
    latent_norm: NormSpec
    expand: LinearSpec
    output: LinearSpec
    heads: int
    key_dim: int
    value_dim: int
    rope: Rope
    adjacent_pairs: bool
    scale: float
    query_latent: LatentQuerySpec | None = None

    @property
    def rank(self) -> int:
        """Of the latent vector."""
        return self.latent_norm.width

    @property
    def rope_dim(self) -> int:
        return self.latent.outputs - self.rank


@dataclass(frozen=True, slots=True)
class ClampedGate:
    """gate * sigmoid(alpha * gate) * (up + 1), of gates up to `limit` and ups from -limit to it."""

    alpha: float
    limit: float


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
    """

    norm: NormSpec | None = field(metadata={OPTIONAL: True})
    gate_up: LinearSpec
    down: LinearSpec
    activation: Activation = "silu"
    output_norm: NormSpec | None = None
    gated: bool = True
    xielu: XIELU | None = None

    @property
    def width(self) -> int:
        return self.down.inputs


@dataclass(frozen=True, slots=True)
class ExpertSpec:
    """down(activation(gate) * up), where gate and up are gate_up of the input."""

    gate_up: LinearSpec
    down: LinearSpec


@dataclass(frozen=True, slots=True)
class SharedExpertSpec:
    """An expert that computes every position, times sigmoid(gate(x)) if it has a gate."""

    gate_up: LinearSpec
    down: LinearSpec
    gate: LinearSpec | None = None  # [1, width]


@dataclass(frozen=True, slots=True)
class ExpertGroups:
    """Groups of adjacent experts. A position chooses among the experts of the best groups.

    count    groups of a layer
    chosen   groups of a position
    judges   experts of a group, the best ones, whose scores add up to the score of the group
    """

    count: int
    chosen: int
    judges: int


ExpertScores = Literal["softmax", "sigmoid"]


@dataclass(frozen=True, slots=True)
class Routing:
    """How a position chooses experts, and how much each counts.

    chosen             experts of a position: those with the best scores
    shares_sum_to_one  the shares of the chosen experts are their scores divided by the sum of them;
                       otherwise shares are scores
    scores             what turns the outputs of the router into scores
    groups             which experts are considered; None: all
    scale              factor of the shares
    """

    chosen: int
    shares_sum_to_one: bool
    scores: ExpertScores = "softmax"
    groups: ExpertGroups | None = None
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class MoESpec:
    """x + shared(norm(x)) + the sum of share * expert(norm(x)) over the chosen experts.

    norm               of the residual stream
    router             from the residual stream to an output for each expert
    routing            from these outputs to experts and their shares
    experts            all of one shape
    activation         of all experts
    clamp              what experts compute of gate and up instead; None: activation(gate) * up
    correction         [experts]; added to scores where experts are chosen, and not to shares
    shared             computes every position; None: there is none
    """

    FEATURE: ClassVar[str] = "moe"

    norm: NormSpec
    router: LinearSpec
    routing: Routing
    experts: tuple[ExpertSpec, ...]
    activation: Activation = "silu"
    clamp: ClampedGate | None = None
    correction: TensorSpec | None = None
    shared: SharedExpertSpec | None = None

    @property
    def width(self) -> int:
        """Inside an expert."""
        return self.experts[0].down.inputs


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """Attention, of one kind or the other; then the MLP.

    parallel   both read the residual stream before the layer; their norms are the same
    """

    attention: AttentionSpec | None
    mlp: MLPSpec | MoESpec
    latent: LatentAttentionSpec | None = None
    parallel: bool = False


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
    logit_scale        factor of the logits
    logit_cap          a logit x becomes cap * tanh(x / cap); None: it stays as it is
    vision             the tower that turns images into embeddings; None: the model has no images
    """

    architecture: str
    embedding: TensorSpec
    layers: tuple[LayerSpec, ...]
    norm: NormSpec
    head: LinearSpec
    embedding_scale: float = 1.0
    rounds_scale: bool = field(default=False, metadata={EVERY_BACKEND: True})
    logit_scale: float = 1.0
    logit_cap: float | None = None
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
    """Factors of the embedding, of what layers add to the residual stream, and of logits."""

    embedding: float = 1.0
    residual: float = 1.0
    logits: float = 1.0


NO_MULTIPLIERS = Multipliers()
