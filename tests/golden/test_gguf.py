"""Small models as .gguf files, written by llama.cpp's own package, against transformers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from paceline.core.errors import ConfigError
from paceline.runner.models.model import Model
from paceline.runner.weights.checkpoint import verify
from paceline.runner.weights.files import open_checkpoint
from tests.conformance.architectures import LLAMA3, SIZES, Case, tokens_of
from tests.golden.support import config_of, made, model_class, same, their_logits
from tests.runner.sequences import OnCPU, logits_of

# Names of llama.cpp, written down once more: the test shall not believe the code.
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.qkv_proj": "attn_qkv",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.gate": "ffn_gate_inp",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
NORMS = {"post_attention_layernorm": "ffn_norm"}
PAIRED = (
    "arcee",
    "granite",
    "granitemoe",
    "granitemoehybrid",
    "llama",
    "ministral3",
    "mixtral",
    "smollm3",
)
# Architectures that files name otherwise.
CALLED = {
    "mixtral": "llama",
    "olmo3": "olmo2",
    "seedoss": "seed_oss",
    "hunyuandensev1": "hunyuan-dense",
    "hunyuanmoev1": "hunyuan-moe",
    "minimaxm2": "minimax-m2",
    "granitemoehybrid": "granitehybrid",
    "deepseekv2": "deepseek2",
    "deepseekv3": "deepseek2",
    "nemotronh": "nemotron_h",
    "nemotronhmoe": "nemotron_h_moe",
    "exaonemoe": "exaone-moe",
    "ministral3": "mistral3",
    "ernie4_5_moe": "ernie4_5-moe",
    "gptoss": "gpt-oss",
    "cohere": "command-r",
    "qwen3_5": "qwen35",
    "qwen3_5moe": "qwen35moe",
}
OF_VARIANTS = {"ungated experts": "nemotronhmoe"}  # architectures of their own in files
WITH_SHARED = ("deepseekv2", "deepseekv3", "dots1", "exaonemoe", "glm4moe", "nemotronhmoe")
WITH_STATES = ("granitemoehybrid", "jamba", "lfm2", "lfm2moe", "nemotronh", "nemotronhmoe")
QWENS = ("qwen3next", "qwen3_5", "qwen3_5moe")  # whose states are gated delta nets
LAYER_NORMS = {
    "cohere": "layer_norm_eps",
    "cohere2": "layer_norm_eps",
    "jais2": "layer_norm_eps",
    "nemotron": "norm_eps",
    "starcoder2": "norm_epsilon",
}
RMS_EPS = ("rms_norm_eps", "norm_eps", "layer_norm_epsilon")
GEMMAS = ("gemma2", "gemma3")
SHIFTED = (*GEMMAS, "gemma", "nemotron")  # norms multiply by 1 plus the weight
GEMMA_NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
Tensors = dict[str, np.ndarray[Any, np.dtype[np.float32]]]


# Names of published files, where transformers has others.
RENAMED: dict[str, Callable[[str], str]] = {
    "minimaxm2": lambda name: name.replace("mlp.e_score", "block_sparse_moe.e_score"),
    "granitemoe": lambda name: name.replace("moe.router", "moe.router.layer"),
    "granitemoehybrid": lambda name: name.replace("moe.router", "moe.router.layer"),
    "nemotronh": lambda name: name.replace("model.", "backbone."),
    "nemotronhmoe": lambda name: name.replace("model.", "backbone."),
    "gptoss": lambda name: name.replace("sinks", "sinks.weight"),
    "gemma4": lambda name: name.replace("layer_scalar", "layer_scalar.weight"),
    "ernie4_5_moe": lambda name: name.replace("gate.moe_statics", "moe_statics"),
}


def gguf_name(name: str, architecture: str) -> str:
    if architecture in NAMED_BY_PACKAGE:
        called = CALLED.get(architecture, architecture)
        kind = next(one for one, name in gguf.MODEL_ARCH_NAMES.items() if name == called)
        name = name.replace("_correction_bias", "_correction.bias")
        name = name.replace("expert_bias", "expert_bias.bias")
        name = RENAMED.get(architecture, lambda one: one)(name)
        name = name.replace(".dt_bias", ".dt_proj.bias")
        for one in (kind, gguf.MODEL_ARCH.LLAMA):  # it knows no plain MLPs in Qwen3-Next
            if found := gguf.get_tensor_name_map(one, 9).get_name(name, (".weight", ".bias")):
                return found
        raise AssertionError(name)
    stem, _, kind = name.rpartition(".")
    names = {**NAMES, **(GEMMA_NORMS if architecture in GEMMAS else NORMS)}
    if stem in names:
        return f"{names[stem]}.{kind}"
    _, _, layer, inner = stem.split(".", 3)
    return f"blk.{layer}.{names[inner]}.{kind}"


def paired(tensor: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Rows of q and k as llama.cpp's conversion of a Llama stores them."""
    halves = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
    return halves.swapaxes(1, 2).reshape(tensor.shape)


# Architectures that have inputs of experts before their outputs.
TRANSPOSED = ("gptoss", "llama4")
SCALES = {"router.scale": "ffn_gate_inp.scale", "router.per_expert_scale": "ffn_down_exps.scale"}


def experts_of(name: str, array: np.ndarray[Any, Any], architecture: str) -> Tensors:
    """Those of all experts of a layer, which are one tensor in both formats."""
    layer, linear = name.split(".")[2], name.rpartition(".")[2]
    linear, kind = linear.removesuffix("_bias"), "bias" if linear.endswith("_bias") else "weight"
    if kind == "weight" and architecture in TRANSPOSED:
        array = array.mT
    if linear in ("down_proj", "up_proj"):
        stem = linear.removesuffix("_proj")
        return {f"blk.{layer}.ffn_{stem}_exps.{kind}": np.ascontiguousarray(array)}
    if architecture == "gemma4":
        return {f"blk.{layer}.ffn_gate_up_exps.{kind}": array}
    if architecture == "gptoss":
        gate, up = array[:, ::2], array[:, 1::2]
    else:
        gate, up = np.split(array, 2, axis=1)
    return {
        f"blk.{layer}.ffn_gate_exps.{kind}": np.ascontiguousarray(gate),
        f"blk.{layer}.ffn_up_exps.{kind}": np.ascontiguousarray(up),
    }


def shared_of(name: str, array: np.ndarray[Any, Any], has_experts: bool) -> Tensors:
    """The MLP of Granite 4, or the expert that all positions share."""
    layer, ending = name.split(".")[2], "_shexp" if has_experts else ""
    stem = f"blk.{layer}.ffn_{{}}{ending}.weight"
    if "output_linear" in name:
        return {stem.format("down"): array}
    gate, up = np.split(array, 2)
    return {stem.format("gate"): gate, stem.format("up"): up}


def keys_and_values(name: str, array: np.ndarray[Any, Any], config: Any) -> Tensors:
    """Of latent attention, as newer files have them."""
    heads, dim = config.num_attention_heads, config.qk_nope_head_dim
    keys, values = np.split(array.reshape(heads, -1, config.kv_lora_rank), [dim], axis=1)
    layer = f"blk.{name.split('.')[2]}"
    return {
        f"{layer}.attn_k_b.weight": np.ascontiguousarray(keys.mT),
        f"{layer}.attn_v_b.weight": np.ascontiguousarray(values),
    }


def write_latent(writer: gguf.GGUFWriter, architecture: str, config: Any) -> None:
    rank, rotated = config.kv_lora_rank, config.qk_rope_head_dim
    keys, values = config.qk_nope_head_dim + rotated, config.v_head_dim
    writer.add_kv_lora_rank(rank)
    writer.add_q_lora_rank(config.q_lora_rank)
    writer.add_rope_dimension_count(rotated)
    is_newer = architecture == "deepseekv3"
    writer.add_key_length(rank + rotated if is_newer else keys)
    writer.add_value_length(rank if is_newer else values)
    if is_newer:
        writer.add_key_length_mla(keys)
        writer.add_value_length_mla(values)


def tiled(array: np.ndarray[Any, Any], config: Any, axis: int) -> np.ndarray[Any, Any]:
    """Heads of values as llama.cpp has them: the first of each head of keys, then the second."""
    keys, heads = config.linear_num_key_heads, config.linear_num_value_heads
    shape = (*array.shape[:axis], keys, heads // keys, -1, *array.shape[axis + 1 :])
    return array.reshape(shape).swapaxes(axis, axis + 1).reshape(array.shape)


def delta_of(name: str, array: np.ndarray[Any, Any], config: Any) -> dict[str, Any]:
    """The tensors of a gated delta net, of Qwen3-Next and of Qwen3.5, by HF's names."""
    keys = config.linear_num_key_heads * config.linear_key_head_dim
    part = name.partition("linear_attn.")[2]
    if part == "in_proj_qkvz.weight":  # of each head of keys
        heads, dim = config.linear_num_key_heads, config.linear_key_head_dim
        values = config.linear_num_value_heads // heads * config.linear_value_head_dim
        cuts = np.cumsum([dim, dim, values])
        *qkv, gates = np.split(array.reshape(heads, -1, array.shape[1]), cuts, axis=1)
        stem = name.replace("in_proj_qkvz", "in_proj_{}")
        found = np.concatenate([one.reshape(-1, array.shape[1]) for one in qkv])
        return {
            stem.format("qkv"): found,
            stem.format("z"): gates.reshape(-1, array.shape[1]),
        }
    if config.model_type == "qwen3_next" or part == "norm.weight":
        return {name: array}
    if part in ("in_proj_qkv.weight", "conv1d.weight"):
        values = tiled(array[2 * keys :], config, 0)
        return {name: np.concatenate((array[: 2 * keys], values))}
    return {name: tiled(array, config, 1 if part == "out_proj.weight" else 0)}


STORED_BUFFERS = ("expert_bias", "correction_bias", "layer_scalar")


def tensors_of(model: Any, architecture: str) -> Tensors:
    """A transformers model's tensors in the names and layouts of llama.cpp."""
    config, tensors = model.config.get_text_config(), {}
    buffers = [one for one in model.named_buffers() if one[0].endswith(STORED_BUFFERS)]
    for label, tensor in (*model.named_parameters(), *buffers):
        if ".visual." in label:  # which is in a file of its own
            continue
        name, array = label.replace(".language_model.", "."), tensor.numpy()
        if ".router." in name and (scale := SCALES.get(".".join(name.split(".")[-2:]))):
            tensors[f"blk.{name.split('.')[2]}.{scale}"] = array
            continue
        if architecture == "deepseekv3" and ".kv_b_proj." in name:
            tensors |= keys_and_values(name, array, config)
            continue
        if name.endswith("correction_bias"):
            array = array.flatten()
        if ".experts." in name:
            tensors |= experts_of(name, array, architecture)
            continue
        if architecture in PAIRED and ".q_proj." in name:
            array = paired(array, config.num_attention_heads)
        if architecture in PAIRED and ".k_proj." in name:
            array = paired(array, config.num_key_value_heads)
        if architecture in SHIFTED and name.endswith("norm.weight"):
            array = array + 1
        if architecture in QWENS and "linear_attn" in name:
            if name.endswith("A_log"):
                array = -np.exp(array)
            for called, one in delta_of(name, array, config).items():
                tensors[gguf_name(called, architecture)] = np.ascontiguousarray(one.squeeze())
            continue
        if architecture in QWENS and name.endswith("norm.weight"):
            array = array + 1
        if name.endswith("A_log"):
            array = -np.exp(array)
        if "conv" in name:
            array = array.squeeze()
        if "nemotronh" in architecture and name.endswith((".A_log", ".D")):
            array = array[:, None]
        if architecture == "granitemoehybrid" and ".shared_mlp." in name:
            tensors |= shared_of(name, array, config.num_local_experts > 0)
            continue
        if name.endswith("mixer.norm.weight"):
            array = array.reshape(config.n_groups, -1)
        tensors[gguf_name(name, architecture)] = np.ascontiguousarray(array)
    return tensors


def write_nemotron(writer: gguf.GGUFWriter, config: Any) -> None:
    widths = {"mlp": config.intermediate_size, "moe": config.moe_intermediate_size}
    writer.add_feed_forward_length([widths.get(one, 0) for one in config.layer_types])
    writer.add_ssm_conv_kernel(config.conv_kernel)
    writer.add_ssm_inner_size(config.mamba_num_heads * config.mamba_head_dim)
    writer.add_ssm_state_size(config.ssm_state_size)
    writer.add_ssm_group_count(config.n_groups)
    writer.add_ssm_time_step_rank(config.mamba_num_heads)
    writer.add_expert_shared_feed_forward_length(config.moe_shared_expert_intermediate_size)


def write_granite(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_ssm_conv_kernel(config.mamba_d_conv)
    writer.add_ssm_inner_size(config.mamba_n_heads * config.mamba_d_head)
    writer.add_ssm_state_size(config.mamba_d_state)
    writer.add_ssm_group_count(config.mamba_n_groups)
    writer.add_ssm_time_step_rank(config.mamba_n_heads)
    writer.add_expert_shared_feed_forward_length(config.shared_intermediate_size)
    writer.add_rope_scaling_finetuned(config.position_embedding_type == "rope")


def write_states(writer: gguf.GGUFWriter, architecture: str, config: Any) -> None:
    heads = config.num_key_value_heads
    kinds = [heads if one == "full_attention" else 0 for one in config.layer_types]
    writer.add_head_count_kv(kinds)
    if "lfm2" in architecture:
        writer.add_shortconv_l_cache(config.conv_L_cache)
        return
    if "nemotronh" in architecture:
        write_nemotron(writer, config)
        return
    if architecture == "granitemoehybrid":
        write_granite(writer, config)
        return
    writer.add_ssm_conv_kernel(config.mamba_d_conv)
    writer.add_ssm_inner_size(config.mamba_expand * config.hidden_size)
    writer.add_ssm_state_size(config.mamba_d_state)
    writer.add_ssm_time_step_rank(config.mamba_dt_rank)


def write_rope(writer: gguf.GGUFWriter, config: Any) -> None:
    ropes = config.rope_parameters
    rope = ropes.get("full_attention", ropes)
    head_dim = getattr(config, "head_dim", config.hidden_size // config.num_attention_heads)
    grown = rope.get("alpha", 1.0) ** (head_dim / (head_dim - 2))
    writer.add_rope_freq_base(rope["rope_theta"] * grown)
    if "partial_rotary_factor" in rope:
        writer.add_rope_dimension_count(int(head_dim * rope["partial_rotary_factor"]))
    if rope["rope_type"] in ("yarn", "longrope"):
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
    if "llama_4_scaling_beta" in rope:
        writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])
        writer.add_rope_scaling_yarn_log_mul(rope["mscale_all_dim"])
    if rope["rope_type"] == "longrope":
        writer.add_rope_scaling_attn_factors(rope["attention_factor"])
        for length in ("short", "long"):
            factors = np.array(rope[f"{length}_factor"], np.float32)
            writer.add_tensor(f"rope_factors_{length}.weight", factors)


def write_gemma4(writer: gguf.GGUFWriter, config: Any) -> Tensors:
    """What layers without a window have otherwise; returns the factors of their frequencies."""
    kinds = [one == "sliding_attention" for one in config.layer_types]
    local, other = (config.per_layer_config[kinds.index(one)] for one in (True, False))
    writer.add_sliding_window_pattern(kinds)
    writer.add_key_length(other.head_dim)
    writer.add_key_length_swa(local.head_dim)
    heads = [(local if one else other).num_key_value_heads for one in kinds]
    writer.add_head_count_kv(heads)
    reading, inner = config.num_kv_shared_layers, config.intermediate_size
    wide = 2 * inner if config.use_double_wide_mlp else inner
    own = config.num_hidden_layers - reading
    writer.add_feed_forward_length([inner] * own + [wide] * reading)
    writer.add_shared_kv_layers(reading)
    writer.add_embedding_length_per_layer_input(config.hidden_size_per_layer_input)
    if config.enable_moe_block:
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.top_k_experts)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    ropes, pairs = config.rope_parameters, other.head_dim // 2
    writer.add_rope_freq_base(ropes["full_attention"]["rope_theta"])
    writer.add_rope_freq_base_swa(ropes["sliding_attention"]["rope_theta"])
    writer.add_rope_dimension_count(other.head_dim)
    rotating = int(pairs * ropes["full_attention"].get("partial_rotary_factor", 1.0))
    factors = [1.0] * rotating + [1e30] * (pairs - rotating)
    return {"rope_freqs.weight": np.array(factors, np.float32)}


def write_multipliers(writer: gguf.GGUFWriter, config: Any) -> None:
    written = {
        "logit_scale": writer.add_logit_scale,
        "logits_scaling": writer.add_logit_scale,
        "embedding_multiplier": writer.add_embedding_scale,
        "residual_multiplier": writer.add_residual_scale,
        "attention_multiplier": writer.add_attention_scale,
    }
    for name, add in written.items():
        if hasattr(config, name):
            add(getattr(config, name))


def first_of(config: Any, *names: str) -> int:
    return next(getattr(config, name) for name in names if hasattr(config, name))


def write_experts(writer: gguf.GGUFWriter, architecture: str, config: Any) -> None:
    writer.add_expert_count(first_of(config, "num_local_experts", "num_experts", "moe_num_experts"))
    writer.add_expert_used_count(first_of(config, "num_experts_per_tok", "moe_k"))
    if architecture == "llama4":
        writer.add_expert_feed_forward_length(config.intermediate_size)
    elif hasattr(config, "moe_intermediate_size"):
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if architecture == "ernie4_5_moe":
        shared = config.moe_num_shared_experts * config.moe_intermediate_size
        writer.add_expert_shared_feed_forward_length(shared)
    if architecture in ("qwen2moe", *QWENS):
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    if architecture in WITH_SHARED:
        writer.add_expert_shared_count(first_of(config, "n_shared_experts", "num_shared_experts"))
        writer.add_expert_weights_scale(config.routed_scaling_factor)
        writer.add_expert_weights_norm(config.norm_topk_prob)
        if config.n_group is not None:
            writer.add_expert_group_count(config.n_group)
            writer.add_expert_group_used_count(config.topk_group)
    if architecture in ("deepseekv3", "dots1", "exaonemoe", "glm4moe", "minimaxm2"):
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


def write_delta(writer: gguf.GGUFWriter, config: Any) -> None:
    heads = config.linear_num_value_heads
    writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
    writer.add_ssm_state_size(config.linear_key_head_dim)
    writer.add_ssm_group_count(config.linear_num_key_heads)
    writer.add_ssm_time_step_rank(heads)
    writer.add_ssm_inner_size(heads * config.linear_value_head_dim)
    writer.add_full_attention_interval(len(config.layer_types))


def write_heads(writer: gguf.GGUFWriter, architecture: str, config: Any) -> None:
    if architecture in WITH_STATES:
        write_states(writer, architecture, config)
    else:
        writer.add_head_count_kv(config.num_key_value_heads)
    if hasattr(config, "kv_lora_rank"):
        write_latent(writer, architecture, config)
        return
    if architecture in QWENS:
        write_delta(writer, config)
    width = config.hidden_size // config.num_attention_heads
    writer.add_key_length(getattr(config, "head_dim", width))


def write(path: Path, architecture: str, config: Any, tensors: Tensors, kind: Kind = Kind.F32):
    writer = gguf.GGUFWriter(path, CALLED.get(architecture, architecture))
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    inner = first_of(config, "intermediate_size_mlp", "intermediate_size", "moe_intermediate_size")
    if architecture == "lfm2":  # which adjusts the number of its file
        inner = tensors["blk.0.ffn_down.weight"].shape[1]
    writer.add_head_count(config.num_attention_heads)
    if architecture == "gemma4":
        tensors = {**tensors, **write_gemma4(writer, config)}
    else:
        write_heads(writer, architecture, config)
        if "nemotronh" not in architecture:  # of each layer
            writer.add_feed_forward_length(inner)
    if (eps := LAYER_NORMS.get(architecture)) is not None:
        writer.add_layer_norm_eps(getattr(config, eps))
    else:
        writer.add_layer_norm_rms_eps(first_of(config, *RMS_EPS))
    if hasattr(config, "rope_parameters") and architecture != "gemma4":
        write_rope(writer, config)
    write_multipliers(writer, config)
    writer.add_token_list([f"<{index}>" for index in range(config.vocab_size)])
    writer.add_eos_token_id(2)
    writer.add_eot_token_id(7)
    writer.add_bos_token_id(1)
    chooses = hasattr(config, "num_experts_per_tok") or hasattr(config, "moe_k")
    has_experts = chooses and getattr(config, "num_local_experts", 1)
    if has_experts and architecture not in ("nemotronh", "gemma4"):
        write_experts(writer, architecture, config)
    if getattr(config, "final_logit_softcapping", None) and architecture == "gemma4":
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)
    for name, array in tensors.items():
        kept = Kind.F32 if array.ndim == 1 or array.shape[-1] % BLOCK else kind
        writer.add_tensor(name, gguf.quants.quantize(array, kept), raw_dtype=kept)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


BLOCK = 32  # of the formats that are written here


def quantized(array: np.ndarray[Any, Any], kind: Kind) -> np.ndarray[Any, Any]:
    """What is left of a matrix that is stored in a format; others are kept."""
    if array.ndim == 1 or array.shape[-1] % BLOCK:
        return array
    return gguf.quants.dequantize(gguf.quants.quantize(array, kind), kind)


def our_logits(path: Path, tokens: list[int]) -> torch.Tensor:
    return logits_of(OnCPU(Model.load(open_checkpoint(path)), "paged"), tokens)


NAMED_BY_PACKAGE = (
    "arcee",
    "cohere",
    "cohere2",
    "deepseekv2",
    "deepseekv3",
    "dots1",
    "ernie4_5",
    "ernie4_5_moe",
    "exaone4",
    "exaonemoe",
    "gemma",
    "gemma4",
    "glm4",
    "glm4moe",
    "gptoss",
    "granite",
    "granitemoe",
    "granitemoehybrid",
    "hunyuandensev1",
    "hunyuanmoev1",
    "jais2",
    "jamba",
    "lfm2",
    "lfm2moe",
    "llama4",
    "minimaxm2",
    "ministral3",
    "nemotron",
    "nemotronh",
    "nemotronhmoe",
    "olmo2",
    "olmo3",
    "olmoe",
    "qwen2moe",
    "qwen2vl",
    "qwen3_5",
    "qwen3_5moe",
    "qwen3next",
    "qwen3vl",
    "qwen3vlmoe",
    "seedoss",
    "smollm3",
    "starcoder2",
)
CASES = [
    *(Case(architecture) for architecture in ("llama", "qwen2", "qwen3", "gemma3", "phi3")),
    Case("mixtral"),
    *(Case("qwen3moe", variant) for variant in ("all shares", "some layers, all shares")),
    *(Case("gemma2", variant) for variant in ("plain", "low caps")),
    *(Case("llama", variant) for variant in ("yarn", "biases everywhere")),
    *(Case("phi3", variant) for variant in ("parts of heads", "longrope")),
    *(Case(one) for one in NAMED_BY_PACKAGE if one not in ("llama4", "nemotronhmoe")),
    Case("nemotronh", "ungated experts"),
    Case("granitemoehybrid", "no experts"),
    Case("hunyuandensev1", "alpha"),
    Case("dots1", "groups of experts"),
    Case("llama4", "long chunks"),
    *(Case("gemma4", variant) for variant in ("experts", "small")),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_same_model_from_a_gguf_file(case: Case, tmp_path: Path) -> None:
    theirs, architecture = made(case), OF_VARIANTS.get(case.variant, case.architecture)
    if architecture in GEMMAS:  # the format says nothing of it, and every small one has this
        for layer in theirs.model.layers:
            layer.self_attn.scaling = theirs.config.head_dim**-0.5
    path = tmp_path / "model.gguf"
    config = theirs.config.get_text_config()
    write(path, architecture, config, tensors_of(theirs, architecture))
    tokens = tokens_of(40, seed=1)
    same(our_logits(path, tokens), their_logits(theirs, tokens))


def test_rope_scaling_is_a_tensor(tmp_path: Path) -> None:
    theirs = made(Case("llama", "llama3 rope"))
    plain = LLAMA3["rope_theta"] ** (-np.arange(0, 16, 2, dtype=np.float32) / 16)
    factors = plain / theirs.model.rotary_emb.inv_freq.numpy()
    assert factors.max() == 8, "the case has no frequency that is scaled"
    path = tmp_path / "model.gguf"
    tensors = tensors_of(theirs, "llama")
    assert "output.weight" not in tensors
    write(path, "llama", theirs.config, {**tensors, "rope_freqs.weight": factors})
    tokens = tokens_of(40, seed=2)
    same(our_logits(path, tokens), their_logits(theirs, tokens))


WRITABLE = "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4"


@pytest.mark.parametrize("kind", [Kind[name] for name in WRITABLE])
def test_every_type_that_can_be_written(kind: Kind, tmp_path: Path) -> None:
    """All tensors, q and k among them, are those that the quantiser made of the model's."""
    theirs = made(Case("llama"))
    theirs.config.intermediate_size = 64
    theirs = type(theirs)(theirs.config).requires_grad_(False)
    path = tmp_path / "model.gguf"
    write(path, "llama", theirs.config, tensors_of(theirs, "llama"), kind)
    checkpoint = open_checkpoint(path)
    verify(checkpoint)
    for name, tensor in theirs.named_parameters():
        expected = tensor
        if tensor.ndim > 1:
            rounded = gguf.quants.dequantize(gguf.quants.quantize(tensor.numpy(), kind), kind)
            expected = torch.from_numpy(rounded)
        torch.testing.assert_close(checkpoint.read(name).float(), expected, rtol=1e-6, atol=1e-7)


def test_the_header(tmp_path: Path) -> None:
    theirs = made(Case("gemma3"))
    path = tmp_path / "model.gguf"
    write(path, "gemma3", theirs.config, tensors_of(theirs, "gemma3"))
    config = open_checkpoint(path).config
    assert (config.vocab, config.width) == (SIZES["vocab_size"], SIZES["hidden_size"])
    assert config.windows == (7, 7, 7, 7, 7, None, 7)
    assert (config.bos, config.eos) == (1, (2, 7))
    assert config.tied_embedding


def without(tensors: Tensors, name: str) -> Tensors:
    return {other: array for other, array in tensors.items() if other != name}


def test_tensors_that_do_not_belong(tmp_path: Path) -> None:
    theirs = made(Case("llama"))
    tensors, path = tensors_of(theirs, "llama"), tmp_path / "model.gguf"
    wrong = {
        "missing: model.layers.1.mlp.up_proj.weight": without(tensors, "blk.1.ffn_up.weight"),
        "unknown: blk.0.attn_k.bias": {
            **tensors,
            "blk.0.attn_k.bias": np.zeros(64, np.float32),
        },
        r"wrong shape: model.norm.weight \[31\] instead of \[32\]": {
            **tensors,
            "output_norm.weight": np.zeros(31, np.float32),
        },
        "unknown: blk.0.ssm_a.weight": {
            **tensors,
            "blk.0.ssm_a.weight": np.zeros(3, np.float32),
        },
    }
    for message, changed in wrong.items():
        write(path, "llama", theirs.config, changed)
        with pytest.raises(ConfigError, match=message):
            Model.load(open_checkpoint(path))


@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q8_0])
def test_heads_of_values_in_another_order_are_quantized_too(kind: Kind, tmp_path: Path) -> None:
    """Rows are read in another order, and inputs are put in that of the columns."""
    sizes = {"linear_value_head_dim": 16, "linear_key_head_dim": 16, "intermediate_size": 64}
    config = model_class("qwen3_5").config_class(
        **{**config_of(Case("qwen3_5")).to_dict(), **sizes}
    )
    theirs = model_class("qwen3_5")(config).eval().requires_grad_(False)
    tensors = tensors_of(theirs, "qwen3_5")
    rounded = {name: quantized(array, kind) for name, array in tensors.items()}
    write(tmp_path / "coded.gguf", "qwen3_5", config, tensors, kind)
    write(tmp_path / "plain.gguf", "qwen3_5", config, rounded)
    tokens = tokens_of(30, seed=1)
    found, due = (our_logits(tmp_path / f"{name}.gguf", tokens) for name in ("coded", "plain"))
    same(found, due)
