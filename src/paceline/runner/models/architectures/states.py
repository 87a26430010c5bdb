"""Text models in which some layers keep a state of each sequence."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from paceline.runner.models.architectures.experts import CORRECTED
from paceline.runner.models.architectures.gated_delta import HEADS_THAT_DRAFT
from paceline.runner.models.config_entries import ConfigEntries
from paceline.runner.models.experts import ExpertStack, ExpertTraits
from paceline.runner.models.gguf_config import layer_types
from paceline.runner.models.hf_config import ALONE, BOTH, FULL, STATE
from paceline.runner.models.linear_spec import Multiplier
from paceline.runner.models.states.kda import kda
from paceline.runner.models.states.mamba1 import mamba1
from paceline.runner.models.states.mamba2 import mamba2
from paceline.runner.models.states.short_conv import short_conv
from paceline.runner.models.traits import DecoderNames, NormNames, Traits

KINDS = {"attention": FULL, "mamba": STATE, "conv": STATE}  # and what they are called here


def kinds_of(layers: Iterable[str]) -> list[str]:
    return [KINDS.get(one, one) for one in layers]


def lfm2_entries(read: ConfigEntries) -> Mapping[str, Any]:
    """The MLP is two thirds as wide as config.json says, times a factor, and then a multiple."""
    layers, inner = read.number("num_hidden_layers"), read.get("block_ff_dim")
    attention = read.get("full_attn_idxs", range(layers))
    usual = ["full_attention" if layer in attention else "conv" for layer in range(layers)]
    inner = inner or read.number("intermediate_size", 12_288)
    if read.get("block_auto_adjust_ff_dim", True):
        multiple = read.number("block_multiple_of", 256)
        inner = int(read.get("block_ffn_dim_multiplier", 1.0) * int(2 * inner / 3))
        inner = -(-inner // multiple) * multiple
    return {
        "layer_types": kinds_of(read.get("layer_types", usual)),
        "intermediate_size": inner,
        "rms_norm_eps": read.get("norm_eps", 1e-5),
        "rope_theta": read.get("rope_theta", 1_000_000.0),
        "tie_word_embeddings": read.get("tie_embedding", read.get("tie_word_embeddings", True)),
    }


def lfm2_header(read: ConfigEntries) -> Mapping[str, Any]:
    """The width of the MLP is what it is."""
    return {
        "layer_types": layer_types(read, STATE),
        "conv_L_cache": read.need("shortconv.l_cache"),
        "block_auto_adjust_ff_dim": False,
    }


LFM2 = Traits(
    qk_norm=True,
    norms=NormNames(last_in_gguf="token_embd_norm"),
    states=short_conv,
    entries=lfm2_entries,
    header=lfm2_header,
    names=(
        ("norm", "embedding_norm"),
        ("input_layernorm", "operator_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("self_attn.q_norm", "self_attn.q_layernorm"),
        ("self_attn.k_norm", "self_attn.k_layernorm"),
        ("self_attn.o_proj", "self_attn.out_proj"),
        ("mlp.gate_proj", "feed_forward.w1"),
        ("mlp.up_proj", "feed_forward.w3"),
        ("mlp.down_proj", "feed_forward.w2"),
    ),
)


def lfm2_moe_entries(read: ConfigEntries) -> Mapping[str, Any]:
    """The MLP of the first layers is as wide as config.json says."""
    return {
        **lfm2_entries(read),
        "intermediate_size": read.number("intermediate_size", 7168),
        "first_k_dense_replace": read.get("num_dense_layers", 2),
    }


def lfm2_moe_header(read: ConfigEntries) -> Mapping[str, Any]:
    return {
        **lfm2_header(read),
        "num_experts": read.number("expert_count"),
        "num_experts_per_tok": read.number("expert_used_count"),
        "moe_intermediate_size": read.number("expert_feed_forward_length"),
    }


LFM2_MOE = replace(
    LFM2,
    entries=lfm2_moe_entries,
    header=lfm2_moe_header,
    experts=ExpertTraits(
        "feed_forward",
        gate="w1",
        up="w3",
        down="w2",
        correction="expert_bias",
        scores="sigmoid",
        shares_sum_to_one=True,
    ),
)


def bamba_entries(read: ConfigEntries) -> Mapping[str, Any]:
    """Half of each head rotates, in the layers that are listed."""
    attention, layers = read.get("attn_layer_indices", ()), read.number("num_hidden_layers")
    return {
        "layer_types": [FULL if layer in attention else STATE for layer in range(layers)],
        "partial_rotary_factor": 0.5,
        "rms_norm_eps": read.get("rms_norm_eps", 1e-5),
    }


FEED_FORWARD = (
    ("norm", "final_layernorm"),
    ("post_attention_layernorm", "pre_ff_layernorm"),
    ("mlp.gate_proj", "feed_forward.gate_proj"),
    ("mlp.up_proj", "feed_forward.up_proj"),
    ("mlp.down_proj", "feed_forward.down_proj"),
)
BAMBA = Traits(states=mamba2, entries=bamba_entries, names=FEED_FORWARD)


def granite_entries(read: ConfigEntries) -> Mapping[str, Any]:
    """Every layer has a shared MLP. Without `position_embedding_type`, nothing rotates."""
    layers = read.number("num_hidden_layers")
    rotates = read.get("position_embedding_type") == "rope"
    return {
        "layer_types": kinds_of(read.get("layer_types", [STATE] * layers)),
        "intermediate_size": read.number("shared_intermediate_size", 1024),
        "moe_intermediate_size": read.get("intermediate_size"),
        "no_rope_layer_interval": 0 if rotates else 1,
    }


def granite_header(read: ConfigEntries) -> Mapping[str, Any]:
    """Without experts, the MLP is what is shared."""
    heads, width = read.number("ssm.time_step_rank"), read.need("feed_forward_length")
    return {
        "layer_types": layer_types(read, STATE),
        "position_embedding_type": "rope" if read.get("rope.scaling.finetuned") else None,
        "shared_intermediate_size": read.get("expert_shared_feed_forward_length", width),
        "num_local_experts": read.get("expert_count"),
        "num_experts_per_tok": read.get("expert_used_count"),
        "mamba_n_heads": heads,
        "mamba_d_head": read.number("ssm.inner_size") // heads,
        "mamba_n_groups": read.get("ssm.group_count"),
        "mamba_d_state": read.get("ssm.state_size"),
        "mamba_d_conv": read.get("ssm.conv_kernel"),
        "embedding_multiplier": read.get("embedding_scale"),
        "residual_multiplier": read.get("residual_scale"),
        "attention_multiplier": read.get("attention.scale"),
        "logits_scaling": read.get("logit_scale"),
    }


GRANITE_HYBRID = Traits(
    gguf="granitehybrid",
    states=mamba2,
    entries=granite_entries,
    header=granite_header,
    paired_in_gguf=True,
    experts=ExpertTraits(
        "block_sparse_moe",
        router="router.layer",
        stack=ExpertStack("input_linear.weight", "output_linear.weight", outputs=1),
        shared="shared_mlp",
        shared_is_fused=True,
        shares_sum_to_one=True,
    ),
    fused_gate_up=True,
    names=(
        ("mlp.gate_up_proj", "shared_mlp.input_linear"),
        ("mlp.down_proj", "shared_mlp.output_linear"),
        ("block_sparse_moe.shared_mlp.gate_up_proj", "shared_mlp.input_linear"),
        ("block_sparse_moe.shared_mlp.down_proj", "shared_mlp.output_linear"),
    ),
)


def nemotron_entries(read: ConfigEntries) -> Mapping[str, Any]:
    """Each layer is one of Mamba, attention, an MLP and an MoE."""
    plain, moe = ALONE
    letters = {"M": STATE, "*": FULL, "-": plain, "E": moe}
    pattern = read.get("hybrid_override_pattern", "")
    usual = [letters.get(letter, letter) for letter in pattern]
    kinds = kinds_of(read.get("layers_block_type", read.get("layer_types", usual)))
    return {
        "layer_types": kinds,
        "num_hidden_layers": len(kinds),
        "moe_layers": [layer for layer, kind in enumerate(kinds) if kind == moe],
        "n_routed_experts": read.get("n_routed_experts", 8) if moe in kinds else None,
        "rms_norm_eps": read.get("layer_norm_epsilon", 1e-5),
        "hidden_activation": read.get("mlp_hidden_act", "relu2"),
        "hidden_act": None,
        "sliding_window": None,
        "no_rope_layer_interval": 1,
        "mamba_n_heads": read.get("mamba_num_heads", 128),
        "mamba_d_head": read.get("mamba_head_dim", 64),
        "mamba_n_groups": read.get("n_groups", 8),
        "mamba_d_state": read.get("ssm_state_size", 128),
        "mamba_d_conv": read.get("conv_kernel", 4),
        "mamba_conv_bias": read.get("use_conv_bias", True),
        "mamba_proj_bias": read.get("use_bias", False),
    }


def nemotron_header(read: ConfigEntries) -> Mapping[str, Any]:
    """A layer with a width is an MLP, or an MoE in models with experts."""
    plain, moe = ALONE
    alone = moe if read.get("expert_count") else plain
    widths: list[int] = read.need("feed_forward_length")
    others = layer_types(read, STATE)
    heads = read.number("ssm.time_step_rank")
    return {
        "layers_block_type": [
            alone if width else other for width, other in zip(widths, others, strict=True)
        ],
        "mamba_num_heads": heads,
        "mamba_head_dim": read.number("ssm.inner_size") // heads,
        "n_groups": read.get("ssm.group_count"),
        "ssm_state_size": read.get("ssm.state_size"),
        "conv_kernel": read.get("ssm.conv_kernel"),
        "n_routed_experts": read.get("expert_count"),
        "num_experts_per_tok": read.get("expert_used_count"),
        "moe_intermediate_size": read.get("expert_feed_forward_length"),
        "moe_shared_expert_intermediate_size": read.get("expert_shared_feed_forward_length"),
        "moe_latent_size": read.get("moe_latent_size"),
        "norm_topk_prob": read.get("expert_weights_norm"),
        "routed_scaling_factor": read.get("expert_weights_scale"),
        "n_group": read.get("expert_group_count"),
        "topk_group": read.get("expert_group_used_count"),
    }


NEMOTRON_H = Traits(
    gguf="nemotron_h",
    activation="relu2",
    gated_mlp=False,
    experts=replace(CORRECTED, block="mixer"),
    decoder=DecoderNames("backbone", older="model"),
    states=partial(mamba2, layer="mixer"),
    entries=nemotron_entries,
    header=nemotron_header,
    norms=NormNames(mlp_in_gguf="attn_norm"),
    names=(
        ("embed_tokens", "embeddings"),
        ("norm", "norm_f"),
        ("input_layernorm", "norm"),
        ("post_attention_layernorm", "norm"),
        *((f"self_attn.{name}_proj", f"mixer.{name}_proj") for name in "qkvo"),
        ("mlp.up_proj", "mixer.up_proj"),
        ("mlp.down_proj", "mixer.down_proj"),
    ),
    ignored=HEADS_THAT_DRAFT,
)


def falcon_entries(read: ConfigEntries) -> Mapping[str, Any]:
    """Each layer has attention and Mamba. Many linears have multipliers."""
    inside, outside = (float(read.get(f"attention_{way}_multiplier", 1)) for way in ("in", "out"))
    gate, down = read.get("mlp_multipliers", (1.0, 1.0))
    before, after = (float(read.get(f"ssm_{way}_multiplier", 1)) for way in ("in", "out"))
    key = float(read.get("key_multiplier", 1))
    linears = {  # of inputs, which biases do not have, and of outputs
        "self_attn.q_proj": (inside, 1.0),
        "self_attn.k_proj": (inside, key),
        "self_attn.v_proj": (inside, 1.0),
        "self_attn.o_proj": (1.0, outside),
        "mlp.gate_proj": (1.0, float(gate)),
        "mlp.down_proj": (1.0, float(down)),
        "mamba.in_proj": (before, 1.0),
        "mamba.out_proj": (1.0, after),
    }
    return {
        "layer_types": [BOTH] * read.number("num_hidden_layers"),
        "linear_multipliers": [
            (name, Multiplier(inputs * outputs, outputs))
            for name, (inputs, outputs) in linears.items()
        ],
        "logit_scale": read.get("lm_head_multiplier"),
        "rms_norm_eps": read.get("rms_norm_eps", 1e-5),
        "mamba_rms_norm": read.get("mamba_rms_norm", False),
        "mamba_norm_before_gate": read.get("mamba_norm_before_gate", True),
        "projectors_bias": read.get("projectors_bias", False),
    }


FALCON_H1 = Traits(states=mamba2, entries=falcon_entries, names=FEED_FORWARD)


def jamba_entries(read: ConfigEntries) -> Mapping[str, Any]:
    """Attention and experts are in layers at regular distances. Nothing rotates."""
    layers = range(read.number("num_hidden_layers"))
    every, first = read.number("attn_layer_period", 8), read.get("attn_layer_offset", 4)
    kinds = [FULL if layer % every == first else STATE for layer in layers]
    every, first = read.number("expert_layer_period", 2), read.get("expert_layer_offset", 1)
    count = read.get("num_experts", 16)
    return {
        "layer_types": read.get("layer_types", kinds),
        "num_experts": count if count > 1 else None,
        "num_experts_per_tok": read.get("num_experts_per_tok", 2),
        "moe_layers": read.get("moe_layers", [layer for layer in layers if layer % every == first]),
        "no_rope_layer_interval": 1,
    }


def jamba_header(read: ConfigEntries) -> Mapping[str, Any]:
    return {
        "layer_types": layer_types(read, STATE),
        "num_experts": read.get("expert_count", 1),
        "num_experts_per_tok": read.get("expert_used_count"),
        "mamba_expand": read.number("ssm.inner_size") // read.number("embedding_length"),
        "mamba_d_state": read.need("ssm.state_size"),
        "mamba_d_conv": read.need("ssm.conv_kernel"),
        "mamba_dt_rank": read.need("ssm.time_step_rank"),
    }


JAMBA = Traits(
    states=mamba1,
    entries=jamba_entries,
    header=jamba_header,
    experts=ExpertTraits("feed_forward", router="router"),
    names=FEED_FORWARD,
)


def kimi_entries(read: ConfigEntries) -> Mapping[str, Any]:
    """Layers are counted from one where they are listed. Nothing rotates."""
    layers = range(read.number("num_hidden_layers"))
    linear: dict[str, Any] = read.get("linear_attn_config", {})
    attention = linear.get("full_attn_layers", range(5, len(layers) + 1, 4))
    usual = [FULL if layer + 1 in attention else STATE for layer in layers]
    first = read.get("first_k_dense_replace", 1)
    kinds = read.get("mlp_layer_types", ["dense"] * first + ["sparse"] * len(layers))
    renamed = {
        "max_position_embeddings": "model_max_length",
        "num_experts_per_tok": "num_experts_per_token",
        "n_shared_experts": "num_shared_experts",
        "norm_topk_prob": "moe_renormalize",
        "n_group": "num_expert_group",
        "scoring_func": "moe_router_activation_func",
    }
    sizes = {"head_dim": "head_dim", "num_heads": "num_heads"}
    sizes["conv_kernel_dim"] = "short_conv_kernel_size"
    return {
        **{name: read.get(name, read.get(other)) for name, other in renamed.items()},
        **{
            f"linear_{name}": linear.get(other, read.get(f"linear_{name}"))
            for name, other in sizes.items()
        },
        "layer_types": read.get("layer_types", usual),
        "moe_layers": [layer for layer in layers if kinds[layer] == "sparse"],
        "no_rope_layer_interval": 1,
    }


KIMI_LINEAR = Traits(
    latent=True,
    states=kda,
    entries=kimi_entries,
    experts=replace(CORRECTED, block="block_sparse_moe", gate="w1", up="w3", down="w2"),
)
ARCHITECTURES = {
    "bamba": BAMBA,
    "falconh1": FALCON_H1,
    "granitemoehybrid": GRANITE_HYBRID,
    "jamba": JAMBA,
    "kimilinear": KIMI_LINEAR,
    "nemotronh": NEMOTRON_H,
    "lfm2": LFM2,
    "lfm2moe": LFM2_MOE,
}
