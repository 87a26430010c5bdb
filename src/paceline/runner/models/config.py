"""The configuration of a model, read from a config.json or a GGUF header."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from paceline.core.errors import ConfigError
from paceline.runner.models import gguf_config, hf_config
from paceline.runner.models.architecture import NO_MULTIPLIERS, AltUpSizes, InputSizes, Multipliers
from paceline.runner.models.config_entries import ConfigEntries, expected
from paceline.runner.models.experts import ExpertSizes, experts_of_gguf, experts_of_hf
from paceline.runner.models.gguf_config import GGUFTensors
from paceline.runner.models.latent import (
    LatentSizes,
    latent_of_gguf,
    latent_of_hf,
    score_scale,
    score_scale_of_gguf,
)
from paceline.runner.models.rope import QueryGrowth, Rope, RopeChoice, frequencies
from paceline.runner.models.states.state_sizes import StateLayers
from paceline.runner.models.traits import Traits, find
from paceline.runner.vision.spec import VisionSpec
from paceline.runner.weights import weight_format
from paceline.runner.weights.weight_format import UNQUANTIZED, Quantization

NO_ATTENTION = 0  # the window of a layer without attention
NO_TENSORS = GGUFTensors()
NO_SETTINGS: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class CellShape:
    """Vectors that a layer keeps of each position.

    Memory of KV, blocks that move, and the sizes of blocks follow from it. One latent row for all
    heads, or keys alone, are other shapes.
    """

    vectors: int
    width: int

    @property
    def values(self) -> int:
        return self.vectors * self.width


@dataclass(frozen=True, slots=True)
class HeadShape:
    """Heads of keys and values of a layer, and their size.

    rank   of latent attention: one vector is the key of all heads, and its first `rank` numbers are
           the value; 0: keys and values are apart
    """

    kv_heads: int
    head_dim: int
    rank: int = 0

    @property
    def is_latent(self) -> bool:
        return self.rank > 0

    @property
    def cell(self) -> CellShape:
        return CellShape(self.kv_heads if self.is_latent else 2 * self.kv_heads, self.head_dim)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Everything about a model but its weights.

    architecture      name in the tables of `models/architectures`
    traits            what all models of its architecture share
    layers            blocks of attention and MLP
    width             of the residual stream
    mlp_width         inside the MLP
    heads, kv_heads   of queries; of keys and values. The first is a multiple of the second
    head_dim          of each head; with latent attention, the part that rotates
    vocab             token ids
    max_position      positions of the longest sequence in training
    norm_eps          added to the mean square
    tied_embedding    the head is the embedding
    windows           of each layer: positions that one position sees, including itself; None: all;
                      NO_ATTENTION: the layer has no attention
    rope, local_rope  of layers without and with a window
    rotary_dim        dimensions of each head that rotate, from the first one on
    unrotated         of each layer: whether queries and keys stay as they are; empty: none do
    growth            of queries with their position, in layers that do not rotate, or in all if all
                      rotate; None: they do not grow
    attention_bias    the linears of attention have biases; traits may give them to some
    output_bias       so has the one after attention
    mlp_bias          the linears of the MLP have biases
    query_scale       factor of the scores before the softmax
    score_cap         soft cap of these scores; None: none
    logit_cap         soft cap of the logits; None: none
    experts           of MoE layers; None: there are none
    states            of layers that keep a state of each sequence; None: there are none
    latent            of latent attention, in all layers; None: attention has keys and values
    vision            the tower that reads images; None: there is none
    bos               token at the start of a text, if there is one
    eos               tokens that end a text
    generates         it has a head; otherwise it only makes embeddings or scores
    ignored           what the names of tensors begin with that are no part of the decoder
    quantization      the format of the weights of each linear
    multipliers       of the embedding, of what layers add, and of logits
    global_heads      of layers without a window, if they have others
    keys_as_values    values are keys before their norm in layers without a window
    reading_layers    so many layers, the last ones, read keys and values of earlier ones
    reading_mlp_width inside their MLPs
    altup             several residual streams; None: there is one
    input_sizes       of the inputs of each layer; None: there are none
    """

    architecture: str
    traits: Traits
    layers: int
    width: int
    mlp_width: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_position: int
    norm_eps: float
    tied_embedding: bool
    windows: tuple[int | None, ...]
    rope: RopeChoice
    local_rope: RopeChoice
    rotary_dim: int
    attention_bias: bool
    mlp_bias: bool
    query_scale: float
    score_cap: float | None
    logit_cap: float | None
    experts: ExpertSizes | None
    bos: int | None
    eos: tuple[int, ...]
    latent: LatentSizes | None = None
    vision: VisionSpec | None = None
    generates: bool = True
    ignored: tuple[str, ...] = ()
    states: StateLayers | None = None
    quantization: Quantization = UNQUANTIZED
    unrotated: tuple[bool, ...] = ()
    growth: QueryGrowth | None = None
    output_bias: bool = False
    multipliers: Multipliers = NO_MULTIPLIERS
    global_heads: HeadShape | None = None
    keys_as_values: bool = False
    reading_layers: int = 0
    reading_mlp_width: int = 0
    altup: AltUpSizes | None = None
    input_sizes: InputSizes | None = None

    def __post_init__(self) -> None:
        sizes = (self.layers, self.width, self.mlp_width, self.heads, self.kv_heads)
        if min(*sizes, self.head_dim, self.vocab, self.max_position) < 1:
            raise ConfigError(f"model dimensions must be positive: {self}")
        if self.heads % self.kv_heads:
            raise ConfigError(
                f"the number of heads ({self.heads}) must be a multiple of the number of "
                f"KV heads ({self.kv_heads})"
            )
        if self.head_dim % 2:
            raise ConfigError(f"the head size must be even, not {self.head_dim}")
        if self.rotary_dim % 2 or not 0 < self.rotary_dim <= self.head_dim:
            raise ConfigError(
                f"the rotated part of a head must be even and at most the head size "
                f"({self.head_dim}), not {self.rotary_dim}"
            )
        if len(self.windows) != self.layers:
            raise ConfigError(
                f"the model has {self.layers} layers, but {len(self.windows)} layer types"
            )
        least = 1 if self.states is None else NO_ATTENTION
        if any(window is not None and window < least for window in self.windows):
            raise ConfigError(f"sliding windows must be positive: {self.windows}")
        if not any(window != NO_ATTENTION for window in self.windows):
            raise ConfigError("a model without attention is not supported")

    def read_by(self, layer: int) -> int | None:
        """The layer whose keys and values a layer reads; None: it has its own."""
        own = self.layers - self.reading_layers
        if layer < own:
            return None
        same = [one for one in range(own) if self.windows[one] == self.windows[layer]]
        if not same:
            raise ConfigError(f"layer {layer} reads keys of an earlier layer, and none is like it")
        return same[-1]

    def loaded_as(self, quantization: str) -> "ModelConfig":
        """The model with plain weights that are quantized while they are loaded, to the format with
        this name; "auto": with weights as they are."""
        if quantization == "auto" or self.quantization != UNQUANTIZED:
            return self
        format = weight_format.load_for_plain(quantization)
        if format.of_experts and self.experts is None:
            raise ConfigError(
                f"quantization is {quantization!r}, which is for experts, and the model has none"
            )
        return replace(self, quantization=weight_format.on_load(format))

    @property
    def cell(self) -> CellShape:
        """Keys and values of every head, or a latent vector. A cell has room for any layer."""
        cells = [self.heads_of(layer).cell for layer in range(self.layers)]
        return max(cells, key=lambda cell: cell.values)

    def heads_of(self, layer: int) -> HeadShape:
        if self.latent is not None:
            return HeadShape(1, self.latent.width, self.latent.rank)
        if self.global_heads is not None and self.windows[layer] is None:
            return self.global_heads
        return HeadShape(self.kv_heads, self.head_dim)

    def stays(self, layer: int) -> bool:
        """Whether queries and keys of a layer do not rotate."""
        return bool(self.unrotated) and self.unrotated[layer]

    def grows(self, layer: int) -> bool:
        """Whether queries of a layer may grow with their position."""
        return self.stays(layer) or not any(self.unrotated)

    @property
    def chunk(self) -> int | None:
        """What windows begin at multiples of; None: they begin anywhere."""
        return next(filter(None, self.windows), None) if self.traits.chunked_windows else None

    @property
    def has_mixed_heads(self) -> bool:
        """Whether layers have different heads, or read keys and values of others."""
        return self.global_heads is not None or self.reading_layers > 0

    @property
    def reads_images_whole(self) -> bool:
        """Whether all positions of an image read each other, in some layers."""
        return self.vision is not None and self.vision.reads_itself != "never"

    @property
    def has_sinks(self) -> bool:
        """Whether each head has a score that takes weight and has no value."""
        return self.traits.sinks

    @property
    def has_whole_norms(self) -> bool:
        """Whether one norm spans all heads of queries, and one all heads of keys."""
        return self.traits.qk_norm and self.traits.qk_norms.whole

    @property
    def has_experts_beside_mlp(self) -> bool:
        """Whether MoE layers have a plain MLP too, with norms of its own."""
        return self.traits.experts is not None and self.traits.experts.beside_mlp

    @classmethod
    def of_hf(
        cls,
        raw: Mapping[str, Any],
        images: Mapping[str, Any] = NO_SETTINGS,
        quantization: str = "auto",
        text_only: bool = False,
    ) -> "ModelConfig":
        """Read the content of a config.json of any version of transformers, and the settings of
        the image processor beside it. Quantized weights are read by the format that is named, or
        else by that of the file. With `text_only`, a model with images is read without them, if it
        can be."""
        with expected("config.json"):
            whole = ConfigEntries(raw, "config.json")
            named = hf_config.architecture(whole, text_only)
            read = hf_config.of_decoder(whole, named)
            weights = hf_config.quantization(read, quantization)
            found = replace(cls._of_hf(named, read), quantization=weights)
            if named.traits.vision is None:
                return found
            vision = named.traits.vision(whole, found.width, images)
            return replace(found, vision=vision, ignored=(*found.ignored, *vision.unread))

    @classmethod
    def _of_hf(cls, named: hf_config.Found, read: "ConfigEntries") -> "ModelConfig":
        architecture, traits = named.name, hf_config.of_file(read, named.traits)
        hf_config.refuse_unsupported(read, traits)
        heads, layers = read.number("num_attention_heads"), read.number("num_hidden_layers")
        head_dim = read.get("head_dim") or read.number("hidden_size") // heads
        kv_heads = read.get("num_key_value_heads") or heads
        scale, latent = hf_config.query_scale(read, head_dim), None
        if traits.latent:
            latent = latent_of_hf(read)
            head_dim, kv_heads, scale = latent.rope_dim, 1, score_scale(read, latent)
        windows = hf_config.windows(read, layers, traits)
        attention_bias, output_bias, mlp_bias = hf_config.biases(read, traits)
        others = HeadShape(*hf_config.global_heads(read, windows, kv_heads, head_dim))
        return cls(
            architecture=architecture,
            traits=traits,
            layers=layers,
            width=read.number("hidden_size"),
            mlp_width=read.number("intermediate_size"),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            vocab=read.number("vocab_size"),
            max_position=read.number("max_position_embeddings"),
            norm_eps=hf_config.norm_eps(read),
            # A model that generates nothing has no head. The embedding stands for it, because
            # every request gets a token.
            tied_embedding=not named.generates
            or read.get("tie_word_embeddings", traits.tied_embedding),
            windows=windows,
            rope=hf_config.rope(read, hf_config.FULL, others.head_dim, traits),
            local_rope=hf_config.rope(read, hf_config.SLIDING, head_dim, traits),
            rotary_dim=hf_config.rotary_dim(read, head_dim),
            unrotated=hf_config.unrotated(read, windows, traits),
            growth=read.get("query_growth"),
            attention_bias=attention_bias,
            output_bias=output_bias,
            mlp_bias=mlp_bias,
            query_scale=scale,
            score_cap=hf_config.cap(read, "attn_logit_softcapping", traits.score_cap),
            logit_cap=hf_config.cap(read, "final_logit_softcapping", traits.logit_cap),
            experts=experts_of_hf(read, layers, traits.experts),
            latent=latent,
            bos=read.get("bos_token_id"),
            eos=hf_config.ids(read.get("eos_token_id")),
            generates=named.generates,
            ignored=(*named.ignored, *traits.ignored, *hf_config.unread(read, layers, traits)),
            states=hf_config.states(read, traits),
            multipliers=hf_config.multipliers(read),
            global_heads=None if others == HeadShape(kv_heads, head_dim) else others,
            keys_as_values=bool(read.get("attention_k_eq_v")),
            reading_layers=read.get("num_kv_shared_layers", 0),
            reading_mlp_width=(1 + bool(read.get("use_double_wide_mlp")))
            * read.number("intermediate_size"),
            altup=read.get("altup"),
            input_sizes=hf_config.input_sizes(read),
        )

    @classmethod
    def of_gguf(cls, raw: Mapping[str, Any], tensors: GGUFTensors = NO_TENSORS) -> "ModelConfig":
        """Read the fields of a GGUF header. The format says some things by its tensors."""
        name = str(ConfigEntries(raw, "the GGUF header").need("general.architecture"))
        read = ConfigEntries(raw, "the GGUF header", f"{name}.")
        architecture = gguf_config.architecture(name, read)
        traits = gguf_config.of_file(read, find(architecture), tensors)
        read = gguf_config.with_defaults(read, traits)
        if traits.states is not None or traits.header is not None:
            named = hf_config.Found(architecture, traits)
            entries = gguf_config.as_hf(raw, read, traits, tensors)
            found = cls._of_hf(named, hf_config.of_decoder(entries, named))
            drafting = read.get("nextn_predict_layers", 0)
            unread = gguf_config.unread(found.layers, found.reading_layers, drafting)
            return replace(found, ignored=(*found.ignored, *unread))
        drafting = read.get("nextn_predict_layers", 0)
        heads, layers = read.number("attention.head_count"), read.number("block_count") - drafting
        width = read.number("embedding_length")
        head_dim = read.get("attention.key_length") or width // heads
        kv_heads = read.get("attention.head_count_kv", heads)
        scale, latent = gguf_config.query_scale(read, architecture, head_dim), None
        if traits.latent:
            latent, kv_heads = latent_of_gguf(read), 1
            head_dim, scale = latent.rope_dim, score_scale_of_gguf(read, latent)
        rope = local = gguf_config.rope(read, head_dim, tensors)
        if traits.local_theta:
            local = RopeChoice.always(Rope.plain(frequencies(traits.local_theta, head_dim)))
        windows = traits.windows(layers, read.get("attention.sliding_window") or None)
        return cls(
            architecture=architecture,
            traits=traits,
            layers=layers,
            width=width,
            mlp_width=read.number("feed_forward_length"),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            latent=latent,
            vocab=read.get("vocab_size") or len(raw.get("tokenizer.ggml.tokens", ())),
            max_position=read.number("context_length"),
            norm_eps=gguf_config.norm_eps(read, traits),
            tied_embedding=not tensors.has_head,
            windows=windows,
            rope=rope,
            local_rope=local,
            rotary_dim=gguf_config.rotary_dim(read, head_dim),
            unrotated=traits.unrotated(windows),
            growth=gguf_config.growth(read),
            attention_bias=tensors.has_bias("attn_q") or tensors.has_bias("attn_qkv"),
            output_bias=tensors.has_bias("attn_output"),
            mlp_bias=tensors.has_bias("ffn_down"),
            query_scale=scale,
            score_cap=read.get("attn_logit_softcapping", traits.score_cap),
            logit_cap=read.get("final_logit_softcapping", traits.logit_cap),
            experts=experts_of_gguf(read, layers, traits.experts, tensors.names),
            bos=raw.get("tokenizer.ggml.bos_token_id"),
            eos=gguf_config.ends(raw),
            multipliers=gguf_config.multipliers(read, traits),
            ignored=tuple(f"blk.{layers + layer}." for layer in range(drafting)),
        )
