"""Every architecture in `paceline.runner.models`, and small models of each in several variants."""

from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from typing import Any

import torch

from paceline.runner.models.architecture import DecoderSpec
from paceline.runner.models.config import ModelConfig
from paceline.runner.models.describe import describe
from paceline.runner.models.layer_groups import BackendSupport, features_of
from paceline.runner.models.traits import AROUND, architectures, find

FULL, SLIDING = "full_attention", "sliding_attention"
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 48,
    "vocab_size": 101,
    "max_position_embeddings": 256,
    "sliding_window": 7,  # of architectures that have windows by nature
}
SOME: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2}
SHARED: dict[str, Any] = {
    **SOME,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 20,
}
DELTA: dict[str, Any] = {
    "layer_types": ["linear_attention", "linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "partial_rotary_factor": 0.5,
}
# Routers like that of DeepSeek V3
CORRECTED: dict[str, Any] = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 16,
    "n_shared_experts": 2,
    "routed_scaling_factor": 1.5,
    "norm_topk_prob": True,
    "first_k_dense_replace": 1,
}
# DeepSeek V3: head_dim is of the rotated part, as transformers has it
MLA: dict[str, Any] = {
    "head_dim": 8,
    "num_key_value_heads": 4,
    "kv_lora_rank": 20,
    "q_lora_rank": 12,
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 8,
    "v_head_dim": 6,
}
GRANITE = {
    "embedding_multiplier": 6.0,
    "attention_multiplier": 0.1,
    "residual_multiplier": 0.22,
    "logits_scaling": 3.0,
}
OWN_SIZES: dict[str, dict[str, Any]] = {
    "ministral3": {"sliding_window": None},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
    "gptoss": {"num_local_experts": 4, "num_experts_per_tok": 2, "attention_bias": True},
    "qwen3next": {**DELTA, **SHARED, "mlp_only_layers": [0]},
    "qwen3_5": DELTA,
    "qwen3_5moe": {**DELTA, **SHARED},
    "lfm2": {
        "head_dim": 8,  # the width by the number of heads, which transformers assumes
        "layer_types": ["conv", "full_attention", "conv"],
        "intermediate_size": 72,
        "block_multiple_of": 16,
    },
    "granitemoehybrid": {
        "head_dim": 8,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "shared_intermediate_size": 40,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "mamba_n_heads": 4,
        "mamba_n_groups": 2,
        "mamba_d_state": 10,
        "embedding_multiplier": 6.0,
        "attention_multiplier": 0.1,
        "residual_multiplier": 0.22,
        "logits_scaling": 3.0,
    },
    "falconh1": {
        "head_dim": 8,
        "mamba_d_ssm": 48,
        "mamba_n_heads": 4,
        "mamba_n_groups": 2,
        "mamba_d_state": 10,
        "mlp_multipliers": [0.7, 1.2],
        "ssm_multipliers": [0.5, 1.5, 0.8, 1.1, 0.9],
        "ssm_in_multiplier": 1.3,
        "ssm_out_multiplier": 0.6,
        "key_multiplier": 0.4,
        "attention_in_multiplier": 1.1,
        "attention_out_multiplier": 0.8,
        "embedding_multiplier": 3.0,
        "lm_head_multiplier": 0.5,
    },
    "nemotronh": {
        "layers_block_type": ["linear_attention", "mlp", "full_attention", "linear_attention"],
        "num_hidden_layers": 4,
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
        "n_groups": 2,
        "ssm_state_size": 10,
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 16,
        "routed_scaling_factor": 1.5,
    },
    "jamba": {
        "head_dim": 8,
        "attn_layer_period": 3,
        "attn_layer_offset": 1,
        "num_experts": 4,
        "mamba_d_state": 10,
        "mamba_dt_rank": 5,
    },
    "kimilinear": {
        **CORRECTED,
        **MLA,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "num_local_experts": 8,
        "n_group": 2,
        "topk_group": 1,
        "linear_num_heads": 3,
        "linear_head_dim": 12,
    },
    "bamba": {
        "head_dim": 8,
        "attn_layer_indices": [1],
        "mamba_n_heads": 4,
        "mamba_n_groups": 2,
        "mamba_d_state": 10,
    },
    "granite": GRANITE,
    "gemma3n": {
        "altup_num_inputs": 3,
        "laurel_rank": 6,
        "activation_sparsity_pattern": [0.8] * 2 + [0.0] * 4,
        "layer_types": [FULL if layer in (1, 4) else SLIDING for layer in range(6)],
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": 99,
        "num_kv_shared_layers": 3,
        "intermediate_size": [48] * 6,
    },
    "gemma4": {
        "global_head_dim": 32,
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": True,
        "hidden_size_per_layer_input": 0,
    },
    "cohere2": {"hidden_size": 64},  # transformers assumes the size of a head
    "qwen2moe": SHARED,
    "dots1": CORRECTED,
    "glm4moe": {**CORRECTED, "attention_bias": True, "use_qk_norm": True},
    "ernie4_5_moe": {
        "moe_num_experts": 4,
        "moe_k": 2,
        "moe_intermediate_size": 16,
        "moe_num_shared_experts": 2,
    },
    "minimaxm2": {"num_local_experts": 4, "num_experts_per_tok": 2, "rotary_dim": 8},
    "hunyuanmoev1": {"num_experts": 4, "moe_topk": 2},
    "granitemoe": {"num_local_experts": 4, "num_experts_per_tok": 2, **GRANITE},
    "deepseekv2": {**CORRECTED, **MLA, "norm_topk_prob": False},
    "deepseekv3": {**CORRECTED, **MLA, "n_group": 4, "topk_group": 2},
    "glm4moelite": {
        **CORRECTED,
        **MLA,
        "n_group": 4,
        "topk_group": 2,
        "mlp_layer_types": ["dense", "sparse", "sparse"],
    },
    "llama4": {
        "num_local_experts": 4,
        "num_experts_per_tok": 1,
        "intermediate_size_mlp": 40,
        "interleave_moe_layer_step": 2,
        "attention_chunk_size": 8,
        "floor_scale": 5,
        "attn_scale": 0.5,
    },
    "solaropen": CORRECTED,
    "hyv3": {
        **SOME,
        "moe_intermediate_size": 16,
        "num_shared_experts": 1,
        "router_scaling_factor": 1.5,
        "mlp_layer_types": ["dense", "sparse", "sparse"],
    },
    "lfm2moe": {
        **SOME,
        "head_dim": 8,
        "layer_types": ["conv", "full_attention", "conv"],
        "moe_intermediate_size": 16,
        "num_dense_layers": 1,
    },
    "mellum": {**SOME, "moe_intermediate_size": 16},
    "youtu": MLA,
    "cohere": {"hidden_size": 64},
    "jais2": {"hidden_size": 64, "attention_bias": True, "mlp_bias": True},
    "nemotron": {"partial_rotary_factor": 0.5},
    "olmoe": {
        **SOME,
        "head_dim": 8,
    },  # the width by the number of heads, which transformers assumes
    "exaonemoe": {
        **SOME,
        "moe_intermediate_size": 16,
        "num_shared_experts": 2,
        "routed_scaling_factor": 1.5,
        "norm_topk_prob": True,
    },
}
THETA = 10_000.0
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": THETA,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
PLAIN = {"rope_type": "default", "rope_theta": THETA}
LINEAR = {"rope_type": "linear", "rope_theta": THETA, "factor": 4.0}
YARN = {
    "rope_type": "yarn",
    "rope_theta": THETA,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}

# Entries of all ropes of an architecture.
OWN_ROPE = {
    "ministral3": {
        "llama_4_scaling_beta": 0.5,
        "original_max_position_embeddings": 6,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
}
# By name: entries of config.json, which all architectures get alike. Models of transformers get
# those that it knows for their architecture.
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "tied head": {"tie_word_embeddings": True},
    "untied head": {"tie_word_embeddings": False},
    "query scale": {"query_pre_attn_scalar": 20},
    "windows": {"use_sliding_window": True, "max_window_layers": 1},
    "keys of their own": {"num_key_value_heads": 4},
    "keys shared by all": {"num_key_value_heads": 1},
    "groups of three": {"hidden_size": 48, "num_attention_heads": 6},
    "llama3 rope": {"rope_parameters": LLAMA3, "tie_word_embeddings": True},
    "linear rope": {"rope_parameters": LINEAR},
    "yarn": {"rope_parameters": YARN},
    "biases everywhere": {"attention_bias": True, "mlp_bias": True, "use_bias": True},
}
# The same for one architecture alone, by its name.
OWN_VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "mellum": {
        "some windows": {
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {
                kind: {"rope_type": "default", "rope_theta": 1e4}
                for kind in ("full_attention", "sliding_attention")
            },
        },
    },
    "falconh1": {
        "norm before gate": {"mamba_rms_norm": True},
        "norm behind gate": {"mamba_rms_norm": True, "mamba_norm_before_gate": False},
    },
    "nemotronh": {
        "ungated experts": {
            "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"],
            "moe_shared_expert_intermediate_size": 20,
        },
        "latent experts": {
            "layers_block_type": ["moe", "linear_attention", "full_attention", "mlp"],
            "moe_shared_expert_intermediate_size": 20,
            "moe_latent_size": 12,
            "n_group": 4,
            "topk_group": 2,
        },
    },
    "granitemoehybrid": {"no experts": {"num_local_experts": 0, "position_embedding_type": "rope"}},
    "gemma2": {"low caps": {"attn_logit_softcapping": 0.9, "final_logit_softcapping": 1.5}},
    "gptoss": {"low limit": {"swiglu_limit": 0.4, "num_experts_per_tok": 3}},
    "deepseekv2": {
        "groups of experts": {
            "n_group": 4,
            "topk_group": 2,
            "topk_method": "group_limited_greedy",
            "q_lora_rank": None,
        },
    },
    "deepseekv3": {
        "growing scores": {
            "attention_bias": True,
            "rope_parameters": {**YARN, "mscale": 0.8, "mscale_all_dim": 0.7},
        },
        "halves": {"rope_interleave": False, "q_lora_rank": None},
    },
    "glm4moe": {"no norms of heads": {"use_qk_norm": False, "n_group": 2, "topk_group": 1}},
    "ernie4_5_moe": {"some layers": {"moe_layer_start_index": 0, "moe_layer_interval": 2}},
    "dots1": {
        "groups of experts": {"n_group": 4, "topk_group": 2},
        "plain shares": {"norm_topk_prob": False},
    },
    "qwen3moe": {
        "all shares": {"norm_topk_prob": True},
        "some layers, all shares": {"decoder_sparse_step": 2, "norm_topk_prob": True},
        "other layers": {"mlp_only_layers": [0, 2], "num_experts_per_tok": 1},
    },
    "gemma4": {
        "experts": {
            "enable_moe_block": True,
            "num_experts": 4,
            "top_k_experts": 2,
            "moe_intermediate_size": 20,
        },
        "small": {
            "attention_k_eq_v": False,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": 101,
            "num_kv_shared_layers": 3,
            "use_double_wide_mlp": True,
            "layer_types": [FULL if layer in (1, 4, 6) else SLIDING for layer in range(7)],
        },
    },
    "llama4": {
        "two experts": {
            "num_experts_per_tok": 2,
            "use_qk_norm": False,
            "attn_temperature_tuning": False,
        },
        "long chunks": {"attention_chunk_size": 8192, "floor_scale": 8192, "attn_scale": 0.1},
    },
    "exaone4": {"no windows": {"sliding_window": None, "layer_types": ["full_attention"] * 5}},
    "hunyuandensev1": {
        "alpha": {
            "rope_parameters": {**PLAIN, "rope_type": "dynamic", "factor": 1.0, "alpha": 50.0}
        }
    },
    "phi3": {
        "parts of heads": {"rope_parameters": {**PLAIN, "partial_rotary_factor": 0.5}},
        "longrope": {
            "head_dim": 8,  # the width by the number of heads, which transformers assumes
            "original_max_position_embeddings": 256,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": THETA,
                "partial_rotary_factor": 0.75,
                "short_factor": [1.0, 1.5, 3.0],
                "long_factor": [2.0, 4.0, 8.0],
                "attention_factor": 1.2,
            },
        },
    },
}
# Of architectures that read images. They run as decoders here; `tests/runner/vision` has images.
MROPE = {**PLAIN, "mrope_section": [2, 3, 3]}
SMALL_LLAMA = {
    "text_config": {"model_type": "llama"},
    "vision_config": {"hidden_size": 32, "image_size": 64},
}
# The width by the number of heads is the size of a head, which transformers assumes.
WIDE = {"hidden_size": 64}
SMALL_QWEN = {"hidden_size": 32, "num_heads": 4, "out_hidden_size": 64}
VISION: dict[str, dict[str, Any]] = {
    "internvl": {
        "text_config": {"model_type": "qwen2", "tie_word_embeddings": False, **WIDE},
        "vision_config": {"hidden_size": 32, "num_attention_heads": 4, "image_size": 56},
        "tie_word_embeddings": False,
    },
    "llava": {
        "text_config": {"model_type": "llama"},
        "vision_config": {
            "model_type": "clip_vision_model",
            "hidden_size": 32,
            "num_attention_heads": 4,
            "image_size": 56,
            "num_hidden_layers": 2,  # of which the last is not computed
        },
    },
    "qwen2_5_vl": {
        "text_config": {"rope_parameters": MROPE, **WIDE},
        "vision_config": SMALL_QWEN,
    },
    "qwen2vl": {
        "text_config": {"rope_parameters": MROPE, **WIDE},
        "vision_config": {"embed_dim": 32, "hidden_size": 64, "num_heads": 4},
    },
    "qwen3vl": {
        "text_config": {"rope_parameters": {**MROPE, "mrope_interleaved": True}},
        "vision_config": {**SMALL_QWEN, "out_hidden_size": 32, "deepstack_visual_indexes": [0]},
    },
    "qwen3vlmoe": {
        "text_config": {
            "rope_parameters": {**MROPE, "mrope_interleaved": True},
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
        },
        "vision_config": {**SMALL_QWEN, "out_hidden_size": 32, "deepstack_visual_indexes": [0]},
    },
    "mistral3": {
        "text_config": {"model_type": "mistral"},
        "vision_config": {
            "model_type": "pixtral",
            "hidden_size": 32,
            "num_attention_heads": 4,
            "head_dim": 8,
            "patch_size": 4,
        },
    },
    "idefics3": SMALL_LLAMA,
    "smolvlm": SMALL_LLAMA,
}
SMALL_TOWER = {"intermediate_size": 24, "num_hidden_layers": 1, "depth": 1}

# Traits of other architectures, which a file cannot choose: for backends alone.
MIXED_TRAITS: dict[str, dict[str, Any]] = {
    "biases": {"qkv_bias": True},
    "norms of heads": {"qk_norm": True},
    "norms behind": {"norms": AROUND},
    "gelu": {"activation": "gelu_pytorch_tanh"},
}


@dataclass(frozen=True)
class Case:
    """A small model of an architecture."""

    architecture: str
    variant: str = "plain"

    def __str__(self) -> str:
        return f"{self.architecture}, {self.variant}"

    @property
    def changes(self) -> dict[str, Any]:
        """What the variant says in config.json."""
        found = {**VARIANTS.get(self.variant, {}), **self.own_changes}
        if (own := OWN_ROPE.get(self.architecture)) is not None:
            found["rope_parameters"] = {**found.get("rope_parameters", YARN), **own}
        if "rope_parameters" in found and find(self.architecture).local_theta is not None:
            plain = {"rope_type": "default", "rope_theta": THETA / 10}
            ropes = {"full_attention": found["rope_parameters"], "sliding_attention": plain}
            found["rope_parameters"] = ropes
        return found

    @property
    def own_changes(self) -> dict[str, Any]:
        """Of a variant that the architecture has alone."""
        return OWN_VARIANTS.get(self.architecture, {}).get(self.variant, {})

    @property
    def sizes(self) -> dict[str, Any]:
        """Layers enough that some see the whole context, where others have a window, and that some
        do not rotate."""
        traits = find(self.architecture)
        kinds = (SIZES["num_hidden_layers"], traits.global_every + 1, traits.unrotated_every)
        layers = max(kinds)
        return {**SIZES, **OWN_SIZES.get(self.architecture, {}), "num_hidden_layers": layers}

    @property
    def entries(self) -> dict[str, Any]:
        """The content of config.json."""
        flat = {**self.sizes, **self.changes}
        if find(self.architecture).vision is None:
            return {"architectures": [f"{self.architecture}ForCausalLM"], **flat}
        return {
            "architectures": [f"{self.architecture}ForConditionalGeneration"],
            **nested(self.architecture, flat),
        }

    def config(self, **changes: Any) -> ModelConfig:
        config = ModelConfig.of_hf({**self.entries, **changes})
        mixed = MIXED_TRAITS.get(self.variant, {})
        return replace(config, traits=replace(config.traits, **mixed))


def nested(architecture: str, flat: dict[str, Any]) -> dict[str, Any]:
    """The same sizes for a decoder with a vision tower."""
    own = VISION[architecture]
    text = {**flat, **own["text_config"]}
    del text["sliding_window"]
    return {**own, "text_config": text, "vision_config": {**SMALL_TOWER, **own["vision_config"]}}


def cases() -> list[Case]:
    """Every architecture in every variant that is not the same model as one before it, of this
    architecture or another."""
    found: dict[DecoderSpec, Case] = {}
    for name in architectures():
        for spec, case in models_of(name).items():
            found.setdefault(spec, case)
    return list(found.values())


@cache
def models_of(architecture: str) -> dict[DecoderSpec, Case]:
    """The different models of an architecture, without its name."""
    # A decoder with a tower is one that is here without it too.
    common = ("plain",) if find(architecture).vision else (*VARIANTS, *MIXED_TRAITS)
    found: dict[DecoderSpec, Case] = {}
    for variant in (*common, *OWN_VARIANTS.get(architecture, {})):
        case = Case(architecture, variant)
        found.setdefault(replace(spec_of(case), architecture=""), case)
    return found


@cache
def spec_of(case: Case) -> DecoderSpec:
    """The description of a case, which decides who computes it."""
    return describe(case.config())


@cache
def refusal(case: Case, support: BackendSupport) -> str | None:
    """Why a backend cannot compute a case; None if it can."""
    return support.supports(spec_of(case))


@cache
def few_cases(first: int = 0, support: BackendSupport | None = None) -> list[Case]:
    """Every architecture as it is, and every variant of one of them, which the backend supports:
    the first one from another place on for each variant."""
    every = cases()
    found = [case for case in every if case.variant == "plain"]
    own = [variant for variants in OWN_VARIANTS.values() for variant in variants]
    for turn, variant in enumerate((*VARIANTS, *own, *MIXED_TRAITS), first):
        same = [case for case in every if case.variant == variant]
        start = turn % max(len(same), 1)
        turned = same[start:] + same[:start]
        found += islice((one for one in turned if not support or not refusal(one, support)), 1)
    return list(dict.fromkeys(found))


def distinct(cases: list[Case], support: BackendSupport) -> list[Case]:
    """The cases that the backend supports with a feature, or of a variant, that none before them
    has, for slow backends."""
    seen: set[str] = set()
    found: list[Case] = []
    for case in cases:
        new = {case.variant, *features_of(spec_of(case))} - seen
        if new and refusal(case, support) is None:
            found.append(case)
            seen |= new
    return found


def tokens_of(length: int, seed: int) -> list[int]:
    """Random tokens of these models."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, SIZES["vocab_size"], (length,), generator=generator).tolist()
