"""The configuration of a model, read from a config.json or a GGUF header."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from paceline.core.errors import ConfigError
from paceline.runner.models.rope import Frequencies, frequencies, scaled
from paceline.runner.models.traits import Traits, find

LAYERS, MOST_LAYERS = ("num_hidden_layers", "block_count"), 10_000
GEMMA_27B_LAYERS = 62
FULL, SLIDING = "full_attention", "sliding_attention"
UNSUPPORTED = (
    "attention_bias",
    "mlp_bias",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "use_bidirectional_attention",
    "quantization_config",
)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Everything about a model but its weights.

    architecture      module name in `models`, which has its traits
    traits            what all models of its architecture share
    layers            blocks of attention and MLP
    width             of the residual stream
    mlp_width         inside the MLP
    heads, kv_heads   of queries; of keys and values. The first is a multiple of the second
    head_dim          of each head
    vocab             token ids
    max_position      positions of the longest sequence in training
    norm_eps          added to the mean square
    tied_embedding    the head is the embedding
    windows           of each layer: positions that one position sees, including itself; None: all
    rope, local_rope  rotary frequencies of layers without and with a window
    query_scale       factor of the scores before the softmax
    bos               token at the start of a text, if there is one
    eos               tokens that end a text
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
    rope: Frequencies
    local_rope: Frequencies
    query_scale: float
    bos: int | None
    eos: tuple[int, ...]

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
        if len(self.windows) != self.layers:
            raise ConfigError(
                f"the model has {self.layers} layers, but {len(self.windows)} layer types"
            )
        if any(window is not None and window < 1 for window in self.windows):
            raise ConfigError(f"sliding windows must be positive: {self.windows}")

    @classmethod
    def of_hf(cls, raw: Mapping[str, Any]) -> "ModelConfig":
        """Read the content of a config.json of any version of transformers."""
        with _expected("config.json"):
            return cls._of_hf(ConfigEntries(raw, "config.json"))

    @classmethod
    def _of_hf(cls, read: "ConfigEntries") -> "ModelConfig":
        name = (read.get("architectures") or [""])[0]
        architecture = name.removesuffix("ForCausalLM").lower()
        if architecture == name.lower():
            raise ConfigError(
                f"architecture {name!r} is not supported: only causal language models are"
            )
        traits = _known(architecture)
        _refuse(read, traits)
        heads, layers = read.number("num_attention_heads"), read.number("num_hidden_layers")
        head_dim = read.get("head_dim") or read.number("hidden_size") // heads
        return cls(
            architecture=architecture,
            traits=traits,
            layers=layers,
            width=read.number("hidden_size"),
            mlp_width=read.number("intermediate_size"),
            heads=heads,
            kv_heads=read.get("num_key_value_heads") or heads,
            head_dim=head_dim,
            vocab=read.number("vocab_size"),
            max_position=read.number("max_position_embeddings"),
            norm_eps=float(read.get("rms_norm_eps") or 1e-6),
            tied_embedding=read.get("tie_word_embeddings", traits.tied_embedding),
            windows=_windows_of_hf(read, layers, traits),
            rope=scaled(*_rope_of_hf(read, FULL, head_dim, traits)),
            local_rope=scaled(*_rope_of_hf(read, SLIDING, head_dim, traits)),
            query_scale=(read.get("query_pre_attn_scalar") or head_dim) ** -0.5,
            bos=read.get("bos_token_id"),
            eos=_ids(read.get("eos_token_id")),
        )

    @classmethod
    def of_gguf(
        cls, raw: Mapping[str, Any], tied_embedding: bool, rope_factors: tuple[float, ...] = ()
    ) -> "ModelConfig":
        """Read the fields of a GGUF header. The other arguments follow from its tensors."""
        architecture = str(ConfigEntries(raw, "the GGUF header").need("general.architecture"))
        traits = _known(architecture)
        read = ConfigEntries(raw, "the GGUF header", f"{architecture}.")
        heads, layers = read.number("attention.head_count"), read.number("block_count")
        width = read.number("embedding_length")
        # The header does not say it: only the largest Gemma 3 scales queries by its width.
        is_27b = architecture == "gemma3" and layers == GEMMA_27B_LAYERS
        head_dim = read.get("attention.key_length") or width // heads
        if read.get("rope.dimension_count", head_dim) != head_dim:
            raise ConfigError(
                "rope.dimension_count differs from the head size: partial rotary "
                "embedding is not supported"
            )
        plain = frequencies(read.get("rope.freq_base", 10_000.0), head_dim)
        factors = rope_factors or (1.0,) * len(plain)
        if len(factors) != len(plain):
            raise ConfigError(
                f"rope_freqs.weight has {len(factors)} factors; the model needs {len(plain)}"
            )
        kind = read.get("rope.scaling.type", "linear")  # the default of llama.cpp
        scaling = {
            "rope_type": "default" if kind == "none" else kind,
            "factor": read.get("rope.scaling.factor", read.get("rope.scale_linear")) or 1.0,
        }
        rope = scaled(tuple(f / by for f, by in zip(plain, factors, strict=True)), scaling)
        local = frequencies(traits.local_theta, head_dim) if traits.local_theta else rope
        ends = (raw.get(f"tokenizer.ggml.{end}_token_id") for end in ("eos", "eot", "eom"))
        return cls(
            architecture=architecture,
            traits=traits,
            layers=layers,
            width=width,
            mlp_width=read.number("feed_forward_length"),
            heads=heads,
            kv_heads=read.get("attention.head_count_kv", heads),
            head_dim=head_dim,
            vocab=read.get("vocab_size") or len(raw.get("tokenizer.ggml.tokens", ())),
            max_position=read.number("context_length"),
            norm_eps=read.need("attention.layer_norm_rms_epsilon"),
            tied_embedding=tied_embedding,
            windows=_windows(layers, traits.global_every, read.get("attention.sliding_window")),
            rope=rope,
            local_rope=local,
            query_scale=(width // heads if is_27b else head_dim) ** -0.5,
            bos=raw.get("tokenizer.ggml.bos_token_id"),
            eos=tuple(dict.fromkeys(end for end in ends if end is not None)),
        )


@dataclass(frozen=True, slots=True)
class ConfigEntries:
    """The entries of a file, by key. An entry of null counts as missing."""

    raw: Mapping[str, Any]
    where: str
    prefix: str = ""

    def get(self, key: str, default: Any = None) -> Any:
        value = self.raw.get(self.prefix + key)
        return default if value is None else value

    def need(self, key: str) -> Any:
        value = self.get(key)
        if value is None:
            raise ConfigError(f"{self.where} has no {self.prefix + key!r}")
        return value

    def number(self, key: str) -> int:
        value = self.need(key)
        if type(value) is not int:
            raise ConfigError(
                f"{self.where}: {self.prefix + key} is {value!r}; it must be an integer"
            )
        if key in LAYERS and value > MOST_LAYERS:
            raise ConfigError(
                f"{self.where}: {self.prefix + key} is {value}; the largest supported "
                f"value is {MOST_LAYERS}"
            )
        return value


@contextmanager
def _expected(where: str) -> Generator[None]:
    """Turn errors of wrong types into a ConfigError."""
    try:
        yield
    except ConfigError:
        raise
    except (TypeError, AttributeError, LookupError, ValueError, ArithmeticError) as error:
        raise ConfigError(f"{where} has a value of the wrong type: {error}") from None


def _known(architecture: str) -> Traits:
    """A file names what is here; it does not choose what is imported."""
    if not architecture.isidentifier():
        raise ConfigError(f"architecture {architecture!r} is not supported")
    return find(architecture)


def _refuse(read: ConfigEntries, traits: Traits) -> None:
    for key in UNSUPPORTED:
        if read.get(key):
            raise ConfigError(f"{read.where}: {key} = {read.get(key)!r} is not supported")
    for key in ("hidden_act", "hidden_activation"):
        if read.get(key, traits.activation) != traits.activation:
            raise ConfigError(f"{read.where}: {key} = {read.get(key)!r} is not supported")


def _ids(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (value,)


def _windows(layers: int, global_every: int, window: int | None) -> tuple[int | None, ...]:
    every = global_every or layers + 1
    return tuple(None if (layer + 1) % every == 0 else window for layer in range(layers))


def _windows_of_hf(read: ConfigEntries, layers: int, traits: Traits) -> tuple[int | None, ...]:
    window = read.get("sliding_window")
    if kinds := read.get("layer_types"):
        if strange := set(kinds) - {FULL, SLIDING}:
            raise ConfigError(f"{read.where}: layer types {sorted(strange)} are not supported")
        return tuple(window if kind == SLIDING else None for kind in kinds)
    if read.get("use_sliding_window"):
        full = read.get("max_window_layers", 0)
        return tuple(None if layer < full else window for layer in range(layers))
    return _windows(layers, read.get("sliding_window_pattern", traits.global_every), window)


def _rope_of_hf(
    read: ConfigEntries, kind: str, head_dim: int, traits: Traits
) -> tuple[Frequencies, Mapping[str, Any]]:
    """Plain frequencies and their scaling, for layers of a kind."""
    given = read.get("rope_parameters")
    if given is not None:
        scaling = given.get(kind, given)
        theta = scaling.get("rope_theta") or read.get("rope_theta", 10_000.0)
    elif kind == SLIDING and traits.local_theta is not None:
        scaling = {}
        theta = read.get("rope_local_base_freq", traits.local_theta)
    else:
        scaling = read.get("rope_scaling", {})
        theta = read.get("rope_theta", 10_000.0)
    return frequencies(float(theta), head_dim), scaling
