"""Reads parts of a GGUF header, and what follows from the tensors of a GGUF file."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import log
from typing import Any

from paceline.core.errors import ConfigError
from paceline.runner.models.architecture import Multipliers
from paceline.runner.models.config_entries import ConfigEntries
from paceline.runner.models.experts import have_routers
from paceline.runner.models.rope import (
    Frequencies,
    QueryGrowth,
    Rope,
    RopeChoice,
    divided,
    frequencies,
    scaled,
)
from paceline.runner.models.traits import Traits, named_in_gguf

GEMMA_27B_LAYERS = {"gemma2": 46, "gemma3": 62}
SIGMOID = 2  # how experts are scored, in headers
HEAD = "output.weight"  # a file without it has a tied head
UNREAD = ("apertus", "gemma3n")  # architectures whose headers say what is not read yet
MAVERICK_EXPERTS = 128  # the header does not say whether Llama 4 has norms of heads
ROPE_FACTORS = "rope_freqs.weight"
SHORT_FACTORS, LONG_FACTORS = "rope_factors_short.weight", "rope_factors_long.weight"
ALL_FACTORS = (ROPE_FACTORS, SHORT_FACTORS, LONG_FACTORS)


@dataclass(frozen=True, slots=True)
class GGUFTensors:
    """Tensor names and rope factors of a GGUF file.

    names     of all tensors but rope factors
    factors   rope factors, by the names of their tensors
    """

    names: Collection[str] = ()
    factors: Mapping[str, Sequence[float]] = field(default_factory=dict[str, Sequence[float]])

    @property
    def has_head(self) -> bool:
        return HEAD in self.names

    def has_bias(self, linear: str) -> bool:
        """Whether a linear of all layers has one."""
        return f"blk.0.{linear}.bias" in self.names


def architecture(name: str, read: ConfigEntries) -> str:
    """The architecture of a file. The format has one name for Llama and Mixtral, one for OLMo 2 and
    3, one for DeepSeek V2 and V3, and two for Nemotron-H."""
    if name == "llama" and read.get("expert_count"):
        return "mixtral"
    if name == "olmo2" and read.get("attention.sliding_window"):
        return "olmo3"
    if name == "deepseek2":
        return "deepseekv3" if read.get("expert_gating_func") == SIGMOID else "deepseekv2"
    if name == "nemotron_h_moe":
        name = "nemotron_h"
    if name in UNREAD:
        raise ConfigError(
            f"a GGUF file of {name!r} is not supported: use the model in Hugging Face's format"
        )
    return named_in_gguf(name)


def ends(raw: Mapping[str, Any]) -> tuple[int, ...]:
    """The tokens that end a text."""
    found = (raw.get(f"tokenizer.ggml.{end}_token_id") for end in ("eos", "eot", "eom"))
    return tuple(dict.fromkeys(end for end in found if end is not None))


def as_hf(
    raw: Mapping[str, Any], read: ConfigEntries, traits: Traits, tensors: GGUFTensors
) -> ConfigEntries:
    """What a header says, as a config.json says it, of an architecture that reads it so. Such a
    header has some numbers for each layer, and 0 where a layer has no such part."""
    if traits.header is None:
        raise ConfigError(
            f"a GGUF file of {raw['general.architecture']!r}, which has layers with states, is not "
            "supported: use the model in Hugging Face's format"
        )
    layers = read.number("block_count") - read.get("nextn_predict_layers", 0)
    width = read.number("embedding_length")
    heads, names = most(read.need("attention.head_count")), tensors.names
    head_dim, eps = read.get("attention.key_length") or width // heads, norm_eps(read, Traits())
    entries = {
        "num_hidden_layers": layers,
        "moe_layers": [layer for layer, found in enumerate(have_routers(layers, names)) if found],
        "attention_k_eq_v": any(
            f"blk.{layer}.attn_k.weight" in names and f"blk.{layer}.attn_v.weight" not in names
            for layer in range(layers)
        ),
        "hidden_size": width,
        "intermediate_size": most(
            read.get("feed_forward_length") or read.need("expert_feed_forward_length")
        ),
        "num_attention_heads": heads,
        "num_key_value_heads": most(read.need("attention.head_count_kv")),
        "head_dim": head_dim,
        "vocab_size": read.get("vocab_size") or len(raw.get("tokenizer.ggml.tokens", ())),
        "max_position_embeddings": read.number("context_length"),
        "rms_norm_eps": eps,
        "layer_norm_epsilon": eps,
        "norm_eps": eps,
        "rope_theta": read.get("rope.freq_base", 10_000.0),
        "partial_rotary_factor": rotary_dim(read, head_dim) / head_dim,
        "tie_word_embeddings": not tensors.has_head,
        "bos_token_id": raw.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": list(ends(raw)),
        **traits.header(with_factors(read, tensors)),
    }
    return ConfigEntries(entries, f"{read.where}, as a config.json")


def with_factors(read: ConfigEntries, tensors: GGUFTensors) -> ConfigEntries:
    """The header with the rope factors, which are a tensor."""
    factors = tensors.factors.get(ROPE_FACTORS)
    return replace(read, raw={**read.raw, f"{read.prefix}{ROPE_FACTORS}": factors})


def unread(layers: int, reading: int, drafting: int) -> tuple[str, ...]:
    """What tensors begin with that files may have and no layer reads: keys and values of layers
    that read those of others, the last ones; and layers behind them, which draft tokens."""
    shared = (
        f"blk.{layer}.attn_{name}."
        for layer in range(layers - reading, layers)
        for name in ("k", "v", "k_norm", "v_norm")
    )
    return (*shared, *(f"blk.{layers + layer}." for layer in range(drafting)))


def most(number: int | list[int]) -> int:
    """The largest number of all layers."""
    return max(number) if isinstance(number, list) else number


def layer_types(read: ConfigEntries, without: str) -> list[str]:
    """Layers without heads of keys have no attention; `without` is what they are instead."""
    counts: list[int] = read.need("attention.head_count_kv")
    counts = counts[: len(counts) - read.get("nextn_predict_layers", 0)]
    return ["full_attention" if count else without for count in counts]


def of_file(read: ConfigEntries, traits: Traits, tensors: GGUFTensors) -> Traits:
    """The traits of an architecture, of which some models have no norms of heads. Norms without
    weights are those of the smaller Llama 4."""
    if traits.qk_norms.bare:
        return replace(traits, qk_norm=read.get("expert_count", 0) < MAVERICK_EXPERTS)
    experts, names = traits.experts, tensors.names
    if experts is not None and "blk.0.ffn_gate_shexp.weight" in names:
        experts = replace(experts, shared_is_fused=False)
    return replace(
        traits,
        qk_norm=traits.qk_norm or "blk.0.attn_q_norm.weight" in names,
        fused_gate_up=traits.fused_gate_up and "blk.0.ffn_gate.weight" not in names,
        experts=experts,
    )


def with_defaults(read: ConfigEntries, traits: Traits) -> ConfigEntries:
    """The entries of a header, and those that it leaves out."""
    usual = {f"{read.prefix}{key}": value for key, value in traits.gguf_defaults}
    return replace(read, raw={**usual, **read.raw})


def norm_eps(read: ConfigEntries, traits: Traits) -> float:
    name = "layer_norm_epsilon" if traits.layer_norm else "layer_norm_rms_epsilon"
    return float(read.need(f"attention.{name}"))


def query_scale(read: ConfigEntries, architecture: str, head_dim: int) -> float:
    """The header does not say that only the largest Gemma scales queries by its width."""
    if read.number("block_count") == GEMMA_27B_LAYERS.get(architecture):
        head_dim = read.number("embedding_length") // read.number("attention.head_count")
    return read.get("attention.scale") or head_dim**-0.5


def growth(read: ConfigEntries) -> QueryGrowth | None:
    """Of queries: as the architecture has it, or in steps of the length before scaling."""
    if (factor := read.get("attention.temperature_scale")) is None:
        return read.get("query_growth")
    return QueryGrowth(float(factor), read.number("rope.scaling.original_context_length"), 0)


def multipliers(read: ConfigEntries, traits: Traits) -> Multipliers:
    logits = float(read.get("logit_scale", 1.0))
    return Multipliers(
        float(read.get("embedding_scale", 1.0)),
        float(read.get("residual_scale", 1.0)),
        1 / logits if traits.divided_logits else logits,
    )


def rope(read: ConfigEntries, head_dim: int, tensors: GGUFTensors) -> RopeChoice:
    """The rope of layers without a window."""
    dims = rotary_dim(read, head_dim)
    plain, factors = frequencies(read.get("rope.freq_base", 10_000.0), dims), tensors.factors
    if ROPE_FACTORS in factors:
        plain = divided(plain, factors[ROPE_FACTORS], ROPE_FACTORS)
    if SHORT_FACTORS in factors and LONG_FACTORS in factors:
        found = _by_length(read, plain, factors)
    else:
        found = scaled(plain, _scaling(read), read.number("context_length"))
    return found.padded(head_dim // 2)


def rotary_dim(read: ConfigEntries, head_dim: int) -> int:
    dims = read.get("rope.dimension_count", head_dim)
    if dims > head_dim or dims % 2:
        raise ConfigError(
            f"{read.where}: rope.dimension_count is {dims}; it must be even and at most the "
            f"head size ({head_dim})"
        )
    return dims


def _by_length(
    read: ConfigEntries, plain: Frequencies, factors: Mapping[str, Sequence[float]]
) -> RopeChoice:
    amplitude = float(read.get("rope.scaling.attn_factor", 1.0))
    short, long = (
        Rope.plain(divided(plain, factors[name], name), amplitude)
        for name in (SHORT_FACTORS, LONG_FACTORS)
    )
    limit = read.get("rope.scaling.original_context_length") or read.number("context_length")
    return RopeChoice(short, long, limit)


def _scaling(read: ConfigEntries) -> dict[str, Any]:
    """The scaling as HF writes it."""
    kind = read.get("rope.scaling.type", "linear")  # the default of llama.cpp
    factor = read.get("rope.scaling.factor", read.get("rope.scale_linear")) or 1.0
    scaling: dict[str, Any] = {"rope_type": "default" if kind == "none" else kind, "factor": factor}
    scaling["original_max_position_embeddings"] = read.get(
        "rope.scaling.original_context_length"
    ) or read.number("context_length")
    if kind == "yarn":
        scaling["truncate"] = read.get("rope.scaling.truncate", True)
        scaling["beta_fast"] = read.get("rope.scaling.yarn_beta_fast")
        scaling["beta_slow"] = read.get("rope.scaling.yarn_beta_slow")
        if every := read.get("rope.scaling.yarn_log_multiplier"):  # of queries and keys alike
            scaling["mscale"] = scaling["mscale_all_dim"] = every
        if (amplitude := read.get("rope.scaling.attn_factor")) is not None:
            scaling["attention_factor"] = amplitude * (1 + 0.1 * log(factor))
    return scaling
