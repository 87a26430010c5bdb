"""Describes a model: from its sizes and the traits of its architecture to every tensor."""

import json
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

from paceline.core.errors import ConfigError
from paceline.core.system.files import json_object
from paceline.runner.models.architecture import (
    AttentionSpec,
    DecoderSpec,
    HeadNorms,
    KVScale,
    LayerSpec,
    LinearSpec,
    MLPSpec,
    MoESpec,
    NormSpec,
)
from paceline.runner.models.config import NO_ATTENTION, ModelConfig
from paceline.runner.models.description.experts import describe_moe
from paceline.runner.models.description.tensors import (
    LayerTensors,
    decoder_norm,
    joined,
    tensor_names,
)
from paceline.runner.models.gguf_config import HEAD
from paceline.runner.models.tensor_spec import GGUFForm, Shape, TensorSpec


def describe(config: ModelConfig, max_model_len: int | None = None) -> DecoderSpec:
    """The only place that reads traits and names tensors.

    `max_model_len` is the length of the longest sequence to compute, if that is not the model's.
    """
    longest = max_model_len or config.max_position
    table = (config.vocab, config.width)
    head = "lm_head.weight"
    copies = (head,) if config.tied_embedding else ()
    name, *aliases = tensor_names(config, f"{config.traits.name('embed_tokens')}.weight")
    embedding = TensorSpec(name, table, GGUFForm("token_embd.weight"), copies, tuple(aliases))
    own_head = TensorSpec(head, table, GGUFForm(HEAD))
    return DecoderSpec(
        architecture=config.architecture,
        embedding=embedding,
        layers=tuple(_layer(config, layer, longest) for layer in range(config.layers)),
        norm=decoder_norm(config, config.traits.name("norm"), "output_norm", config.width),
        head=LinearSpec((embedding if config.tied_embedding else own_head,)),
        embedding_scale=config.width**0.5 if config.traits.scaled_embedding else 1.0,
        logit_cap=config.logit_cap,
        vision=None if config.vision is None else config.vision.describe(),
    )


def _layer(config: ModelConfig, layer: int, longest: int) -> LayerSpec:
    tensors, attention, state = LayerTensors(config, layer), None, None
    if config.windows[layer] != NO_ATTENTION:
        attention = _attention(config, layer, longest, tensors)
    if (states := config.states) is not None and states.layers[layer]:
        state = states.sizes.describe(tensors, _input_norm(config, tensors))
    return LayerSpec(attention, _mlp_or_moe(config, layer, tensors), state)


def _input_norm(config: ModelConfig, tensors: LayerTensors) -> NormSpec:
    return tensors.norm("input_layernorm", "attn_norm", config.width)


def _mlp_or_moe(config: ModelConfig, layer: int, tensors: LayerTensors) -> MLPSpec | MoESpec | None:
    traits = config.traits.experts
    if config.states is not None and not config.states.mlps[layer]:
        return None
    if traits is not None and config.experts is not None and config.experts.layers[layer]:
        return describe_moe(config, config.experts, traits, tensors)
    return _mlp(config, tensors)


def _attention(
    config: ModelConfig, layer: int, longest: int, tensors: LayerTensors
) -> AttentionSpec:
    traits, window = config.traits, config.windows[layer]
    rope = config.rope if window is None else config.local_rope
    head_norms = None
    if traits.qk_norm:
        head_norms = HeadNorms(
            tensors.norm("self_attn.q_norm", "attn_q_norm", config.head_dim),
            tensors.norm("self_attn.k_norm", "attn_k_norm", config.head_dim),
        )
    output_norm = None
    if traits.post_norms:
        output_norm = tensors.norm("post_attention_layernorm", "post_attention_norm", config.width)
    attention = AttentionSpec(
        norm=_input_norm(config, tensors),
        qkv=_qkv(config, tensors),
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        rope=rope.at(longest),
        rotary_dim=config.rotary_dim,
        scale=config.query_scale,
        output=tensors.linear(
            "self_attn.o_proj",
            "attn_output",
            (config.width, config.heads * config.head_dim),
            has_bias=config.attention_bias,
        ),
        head_norms=head_norms,
        window=window,
        score_cap=config.score_cap,
        output_norm=output_norm,
        sinks=tensors.tensor("self_attn.sinks", "attn_sinks.weight", config.heads)
        if traits.sinks
        else None,
        gated=traits.gated_attention,
    )
    return _with_kv_scales(attention, tensors) if config.quantization.has_kv_scales else attention


def _with_kv_scales(attention: AttentionSpec, tensors: LayerTensors) -> AttentionSpec:
    """Divide keys and values by their scales. Queries and outputs are multiplied by them, so that
    attention computes the same."""
    of_keys, of_values = tensors.kv_scale("k"), tensors.kv_scale("v")
    if len(attention.qkv.weights) == 1:
        raise ConfigError("scales of the KV cache need queries, keys and values in three tensors")
    queries, keys = KVScale(of_keys, divides=False), KVScale(of_keys, divides=True)
    values = KVScale(of_values, divides=True)
    folded, norms = (queries, keys, values), attention.head_norms
    if norms is not None:
        query, key = replace(norms.query, scale=queries), replace(norms.key, scale=keys)
        folded, norms = (None, None, values), HeadNorms(query, key)
    outputs = KVScale(of_values, divides=False, has_bias=False)
    return replace(
        attention,
        qkv=replace(attention.qkv, folded=folded),
        output=replace(attention.output, folded=(outputs,)),
        head_norms=norms,
    )


def _qkv(config: ModelConfig, tensors: LayerTensors) -> LinearSpec:
    traits, width = config.traits, config.width
    has_bias = traits.qkv_bias or config.attention_bias
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    if traits.fused_linears:
        shape = (queries + 2 * keys, width)
        return tensors.linear("self_attn.qkv_proj", "attn_qkv", shape, has_bias)
    gated = 2 * queries if traits.gated_attention else queries
    names = (("q", gated, config.heads), ("k", keys, config.kv_heads), ("v", keys, 0))
    return joined(
        tensors.linear(
            f"self_attn.{name}_proj",
            f"attn_{name}",
            (outputs, width),
            has_bias,
            paired_heads=heads if traits.paired_in_gguf else 0,
        )
        for name, outputs, heads in names
    )


def _mlp(config: ModelConfig, tensors: LayerTensors) -> MLPSpec:
    traits, width, inner = config.traits, config.width, config.mlp_width
    # HF gives this name to the norm before the MLP; where attention has a norm behind it too, the
    # name is that norm's.
    name, output_norm = "post_attention_layernorm", None
    if traits.post_norms:
        name = "pre_feedforward_layernorm"
        output_norm = tensors.norm("post_feedforward_layernorm", "post_ffw_norm", width)
    return MLPSpec(
        norm=tensors.norm(name, "ffn_norm", width),
        gate_up=_gate_up(config, tensors),
        down=tensors.linear("mlp.down_proj", "ffn_down", (width, inner), config.mlp_bias),
        activation=traits.activation,
        output_norm=output_norm,
    )


def _gate_up(config: ModelConfig, tensors: LayerTensors) -> LinearSpec:
    width, inner = config.width, config.mlp_width
    if config.traits.fused_linears:
        return tensors.linear("mlp.gate_up_proj", "ffn_up", (2 * inner, width), config.mlp_bias)
    return joined(
        tensors.linear(f"mlp.{name}_proj", f"ffn_{name}", (inner, width), config.mlp_bias)
        for name in ("gate", "up")
    )


def named_shapes() -> list[str]:
    """Names of the model shapes that come with the package."""
    folder = files("paceline.runner.models") / "shapes"
    return sorted(file.name.removesuffix(".json") for file in folder.iterdir())


def config_in(name: str) -> ModelConfig:
    """Read the configuration of a named shape, or of a folder with a config.json."""
    folder = Path(name).expanduser()
    if name in named_shapes():
        text = (files("paceline.runner.models") / "shapes" / f"{name}.json").read_text()
        return ModelConfig.of_hf(json.loads(text))
    if (folder / "config.json").is_file():
        return ModelConfig.of_hf(json_object(folder / "config.json"))
    known = ", ".join(named_shapes())
    raise ConfigError(
        f"unknown model shape {name!r}: choose {known}, or a folder with a config.json"
    )


def manifest(config: ModelConfig) -> dict[str, Shape]:
    """Every tensor of a model, in the order of computation."""
    return {tensor.name: tensor.shape for tensor in describe(config).tensors}
