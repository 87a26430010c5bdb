"""Descriptions of encoders, from the entries of their config.json."""

from dataclasses import dataclass
from typing import Any

from paceline.core.errors import ConfigError
from paceline.runner.encoders.spec import (
    ACTIVATIONS,
    Around,
    EncoderAttention,
    EncoderHead,
    EncoderLayer,
    EncoderLinear,
    EncoderMLP,
    EncoderNorm,
    EncoderSpec,
)
from paceline.runner.models.architecture import AttentionSpec, DecoderSpec, LayerSpec, MLPSpec
from paceline.runner.models.config_entries import ConfigEntries
from paceline.runner.models.layer_groups import BackendSupport
from paceline.runner.models.linear_spec import LinearSpec, NormSpec
from paceline.runner.models.rope import Rope, frequencies

# Features of decoders with bidirectional attention.
OF_DECODERS = BackendSupport(
    backend="encoder",
    features=frozenset(
        {
            "embedding_scale",
            "layers.attention.head_norms",
            "layers.attention.output_norm",
            "layers.attention.window",
            "layers.mlp.activation=gelu_pytorch_tanh",
            "layers.mlp.output_norm",
        }
    ),
)


@dataclass(frozen=True, slots=True)
class LayerNames:
    """Names of the parts of a layer in BERT-like models: attention and an MLP, each followed by a
    norm of the residual sum."""

    layer: str
    qkv: tuple[str, ...]
    output: str
    norm: str
    up: str
    down: str
    last_norm: str

    def described(self, layer: int, heads: int, width: int, eps: float, act: str) -> EncoderLayer:
        def linear(*names: str) -> EncoderLinear:
            return EncoderLinear(tuple(f"{self.layer}.{layer}.{name}" for name in names))

        def around(name: str) -> Around:
            return Around(sum_norm=EncoderNorm(f"{self.layer}.{layer}.{name}", eps))

        size = width // heads
        return EncoderLayer(
            EncoderAttention(
                around=around(self.norm),
                qkv=linear(*self.qkv),
                output=linear(self.output),
                heads=heads,
                kv_heads=heads,
                head_dim=size,
                scale=size**-0.5,
            ),
            EncoderMLP(around(self.last_norm), linear(self.up), linear(self.down), act),
        )


BERT_LAYER = LayerNames(
    layer="encoder.layer",
    qkv=tuple(f"attention.self.{one}" for one in ("query", "key", "value")),
    output="attention.output.dense",
    norm="attention.output.LayerNorm",
    up="intermediate.dense",
    down="output.dense",
    last_norm="output.LayerNorm",
)
MPNET_LAYER = LayerNames(
    layer="encoder.layer",
    qkv=tuple(f"attention.attn.{one}" for one in "qkv"),
    output="attention.attn.o",
    norm="attention.LayerNorm",
    up="intermediate.dense",
    down="output.dense",
    last_norm="output.LayerNorm",
)
DISTILBERT_LAYER = LayerNames(
    layer="transformer.layer",
    qkv=tuple(f"attention.{one}_lin" for one in "qkv"),
    output="attention.out_lin",
    norm="sa_layer_norm",
    up="ffn.lin1",
    down="ffn.lin2",
    last_norm="output_layer_norm",
)
WORDS, POSITIONS = "embeddings.word_embeddings.weight", "embeddings.position_embeddings.weight"
SEGMENTS = "embeddings.token_type_embeddings.weight"
POOLER = EncoderHead(EncoderLinear(("pooler.dense",)), "tanh", EncoderLinear(("classifier",)))
OUT_PROJECTION = EncoderHead(
    EncoderLinear(("classifier.dense",)), "tanh", EncoderLinear(("classifier.out_proj",))
)
PRE_CLASSIFIER = EncoderHead(
    EncoderLinear(("pre_classifier",)), "relu", EncoderLinear(("classifier",))
)


def _check_positions(read: ConfigEntries) -> None:
    if read.get("position_embedding_type", "absolute") != "absolute":
        raise ConfigError(
            f"{read.where}: position_embedding_type is "
            f"{read.get('position_embedding_type')!r}; only 'absolute' is supported"
        )


def bert(read: ConfigEntries) -> EncoderSpec:
    _check_positions(read)
    eps = float(read.get("layer_norm_eps", 1e-12))
    return EncoderSpec(
        prefix="bert.",
        words=WORDS,
        layers=_layers(read, BERT_LAYER, eps),
        positions=POSITIONS,
        segments=SEGMENTS,
        norm=EncoderNorm("embeddings.LayerNorm", eps),
        head=POOLER,
    )


def roberta(read: ConfigEntries) -> EncoderSpec:
    _check_positions(read)
    eps = float(read.get("layer_norm_eps", 1e-12))
    return EncoderSpec(
        prefix="roberta.",
        words=WORDS,
        layers=_layers(read, BERT_LAYER, eps),
        positions=POSITIONS,
        first_position=int(read.get("pad_token_id", 1)) + 1,
        segments=SEGMENTS,
        norm=EncoderNorm("embeddings.LayerNorm", eps),
        head=OUT_PROJECTION,
    )


def mpnet(read: ConfigEntries) -> EncoderSpec:
    eps = float(read.get("layer_norm_eps", 1e-12))
    return EncoderSpec(
        prefix="mpnet.",
        words=WORDS,
        layers=_layers(read, MPNET_LAYER, eps),
        positions=POSITIONS,
        first_position=2,  # whatever the padding id is
        norm=EncoderNorm("embeddings.LayerNorm", eps),
        relative="encoder.relative_attention_bias.weight",
        head=OUT_PROJECTION,
    )


def distilbert(read: ConfigEntries) -> EncoderSpec:
    act = _activation(read, "activation", "gelu")
    sizes = read.number("n_heads", 12), read.number("dim", 768)
    layers = read.number("n_layers", 6)
    return EncoderSpec(
        prefix="distilbert.",
        words=WORDS,
        layers=tuple(
            DISTILBERT_LAYER.described(layer, *sizes, 1e-12, act) for layer in range(layers)
        ),
        positions=POSITIONS,
        norm=EncoderNorm("embeddings.LayerNorm", 1e-12),
        head=PRE_CLASSIFIER,
    )


def _layers(read: ConfigEntries, names: LayerNames, eps: float) -> tuple[EncoderLayer, ...]:
    heads, width = read.number("num_attention_heads"), read.number("hidden_size")
    act = _activation(read, "hidden_act", "gelu")
    layers = range(read.number("num_hidden_layers"))
    return tuple(names.described(layer, heads, width, eps, act) for layer in layers)


def _activation(read: ConfigEntries, key: str, usual: str) -> str:
    found = read.get(key, usual)
    if found not in ACTIVATIONS:
        raise ConfigError(
            f"{read.where}: {key} is {found!r}; supported are {', '.join(ACTIVATIONS)}"
        )
    return str(found)


def modernbert(read: ConfigEntries) -> EncoderSpec:
    """ModernBERT: pre-norm layers with global or local attention."""
    eps, has_bias = float(read.get("norm_eps", 1e-5)), bool(read.get("norm_bias", False))
    every, layers = read.get("global_attn_every_n_layers", 3), read.number("num_hidden_layers")
    kinds = read.get("layer_types") or [
        "near" if layer % every else FULL for layer in range(layers)
    ]

    def norm(name: str) -> EncoderNorm:
        return EncoderNorm(name, eps, has_bias)

    return EncoderSpec(
        prefix="model.",
        words="embeddings.tok_embeddings.weight",
        layers=tuple(
            EncoderLayer(
                _modern_attention(
                    read,
                    f"layers.{layer}",
                    kind,
                    norm(f"layers.{layer}.attn_norm") if layer else None,
                ),
                _modern_mlp(read, f"layers.{layer}.mlp", norm(f"layers.{layer}.mlp_norm")),
            )
            for layer, kind in enumerate(kinds)
        ),
        norm=norm("embeddings.norm"),
        last_norm=norm("final_norm"),
        head=EncoderHead(
            EncoderLinear(("head.dense",), bool(read.get("classifier_bias", False))),
            _activation(read, "classifier_activation", "gelu"),
            EncoderLinear(("classifier",)),
            norm("head.norm"),
            pools_mean=read.get("classifier_pooling", "cls") == "mean",
        ),
    )


FULL = "full_attention"
OLDER_BASES = {True: ("global_rope_theta", 160_000.0), False: ("local_rope_theta", 10_000.0)}


def _modern_attention(
    read: ConfigEntries, name: str, kind: str, norm: EncoderNorm | None
) -> EncoderAttention:
    heads, reads_all = read.number("num_attention_heads"), kind == FULL
    size, has_bias = read.number("hidden_size") // heads, bool(read.get("attention_bias", False))
    by_kind: dict[str, Any] = read.get("rope_parameters", {})
    rope: dict[str, Any] = by_kind.get(FULL if reads_all else "sliding_attention") or {}
    if rope.get("rope_type", "default") != "default":
        raise ConfigError(f"{read.where}: rope_type {rope['rope_type']!r} is not supported")
    older, usual = OLDER_BASES[reads_all]
    base = float(rope.get("rope_theta") or read.get(older, usual))
    return EncoderAttention(
        around=Around(norm),
        qkv=EncoderLinear((f"{name}.attn.Wqkv",), has_bias),
        output=EncoderLinear((f"{name}.attn.Wo",), has_bias),
        heads=heads,
        kv_heads=heads,
        head_dim=size,
        scale=size**-0.5,
        rope=Rope.plain(frequencies(base, size)),
        reach=None if reads_all else read.number("local_attention", 128) // 2,
    )


def _modern_mlp(read: ConfigEntries, name: str, norm: EncoderNorm) -> EncoderMLP:
    has_bias = bool(read.get("mlp_bias", False))
    return EncoderMLP(
        Around(norm),
        EncoderLinear((f"{name}.Wi",), has_bias),
        EncoderLinear((f"{name}.Wo",), has_bias),
        _activation(read, "hidden_activation", "gelu"),
        is_gated=True,
    )


def of_decoder(spec: DecoderSpec) -> EncoderSpec:
    """A decoder with bidirectional attention, such as EmbeddingGemma."""
    OF_DECODERS.require(spec)
    return EncoderSpec(
        prefix="model.",
        words=_bare(spec.embedding.name),
        layers=tuple(_layer_of(layer) for layer in spec.layers),
        scale=spec.embedding_scale,
        last_norm=_rms(spec.norm),
    )


def _layer_of(layer: LayerSpec) -> EncoderLayer:
    attention, mlp = layer.attention, layer.mlp
    assert attention is not None and isinstance(mlp, MLPSpec)  # OF_DECODERS has no other features
    return EncoderLayer(_attention_of(attention), _mlp_of(mlp))


def _attention_of(one: AttentionSpec) -> EncoderAttention:
    norms = one.head_norms
    return EncoderAttention(
        around=Around(_optional_rms(one.norm), _optional_rms(one.output_norm)),
        qkv=_linear_of(one.qkv),
        output=_linear_of(one.output),
        heads=one.heads,
        kv_heads=one.kv_heads,
        head_dim=one.head_dim,
        scale=one.scale,
        rope=one.rope,
        query_norm=None if norms is None else _rms(norms.query),
        key_norm=None if norms is None else _rms(norms.key),
        reach=None if one.window is None else one.window // 2,
    )


def _mlp_of(one: MLPSpec) -> EncoderMLP:
    return EncoderMLP(
        Around(_optional_rms(one.norm), _optional_rms(one.output_norm)),
        _linear_of(one.gate_up),
        _linear_of(one.down),
        one.activation,
        is_gated=True,
    )


def _linear_of(linear: LinearSpec) -> EncoderLinear:
    names = tuple(_bare(one.name).removesuffix(".weight") for one in linear.weights)
    return EncoderLinear(names, bool(linear.biases))


def _rms(norm: NormSpec) -> EncoderNorm:
    assert not isinstance(norm.weight, int), "a norm without weights"
    name = _bare(norm.weight.name).removesuffix(".weight")
    return EncoderNorm(name, norm.eps, has_bias=False, is_rms=True, offset=norm.offset)


def _optional_rms(norm: NormSpec | None) -> EncoderNorm | None:
    return None if norm is None else _rms(norm)


def _bare(name: str) -> str:
    return name.removeprefix("model.")
