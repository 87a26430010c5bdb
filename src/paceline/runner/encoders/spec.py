"""The description of an encoder: all its tensors and options."""

from dataclasses import dataclass

from paceline.runner.models.rope import Rope

ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "tanh")


@dataclass(frozen=True, slots=True)
class EncoderNorm:
    """A layer norm, or an RMS norm, which multiplies by its weight plus `offset`."""

    name: str
    eps: float
    has_bias: bool = True
    is_rms: bool = False
    offset: float = 0.0


@dataclass(frozen=True, slots=True)
class EncoderLinear:
    """A linear of one or several tensors, joined by output."""

    names: tuple[str, ...]
    has_bias: bool = True


@dataclass(frozen=True, slots=True)
class Around:
    """Norms around a sublayer f: sum_norm(x + output_norm(f(norm(x)))); each is optional."""

    norm: EncoderNorm | None = None
    output_norm: EncoderNorm | None = None
    sum_norm: EncoderNorm | None = None


@dataclass(frozen=True, slots=True)
class EncoderAttention:
    """Bidirectional attention, global or local.

    qkv                    queries, keys and values, in this order
    heads, kv_heads        of queries; of keys and values
    scale                  factor of the scores before the softmax
    rope                   of queries and keys; None: the model has position embeddings
    query_norm, key_norm   of each head, before the rotary embedding
    reach                  positions that one position reads on each side; None: all
    """

    around: Around
    qkv: EncoderLinear
    output: EncoderLinear
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    rope: Rope | None = None
    query_norm: EncoderNorm | None = None
    key_norm: EncoderNorm | None = None
    reach: int | None = None


@dataclass(frozen=True, slots=True)
class EncoderMLP:
    """down(activation(up(x))); with a gate, `up` has two halves: down(activation(a) * b)."""

    around: Around
    up: EncoderLinear
    down: EncoderLinear
    activation: str
    is_gated: bool = False


@dataclass(frozen=True, slots=True)
class EncoderLayer:
    attention: EncoderAttention
    mlp: EncoderMLP


@dataclass(frozen=True, slots=True)
class EncoderHead:
    """Classification head of a pooled text: out(norm(activation(dense(x))))."""

    dense: EncoderLinear
    activation: str
    out: EncoderLinear
    norm: EncoderNorm | None = None
    pools_mean: bool = False  # pools the mean of all positions, otherwise the first


@dataclass(frozen=True, slots=True)
class EncoderSpec:
    """A whole encoder.

    prefix          of the names of its tensors, except those of the head
    words           the embedding of token ids
    layers          in the order of computation
    scale           factor of the embedding
    positions       the embedding of positions
    first_position  of a text: RoBERTa's positions begin after the padding id
    segments        the embedding of the segment, the text of a pair
    norm            of the sum of embeddings
    last_norm       after all layers
    relative        biases of scores by head and distance, as in MPNet
    head            of a classifier; None: the model computes embeddings
    """

    prefix: str
    words: str
    layers: tuple[EncoderLayer, ...]
    scale: float = 1.0
    positions: str = ""
    first_position: int = 0
    segments: str = ""
    norm: EncoderNorm | None = None
    last_norm: EncoderNorm | None = None
    relative: str = ""
    head: EncoderHead | None = None
