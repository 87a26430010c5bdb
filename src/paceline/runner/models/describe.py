"""Describes a model: from its sizes and the traits of its architecture to every tensor."""

import json
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

from paceline.core.errors import ConfigError
from paceline.core.system.files import json_object
from paceline.runner.models.architecture import (
    XIELU,
    AttentionSpec,
    DecoderSpec,
    HeadNorms,
    LayerSpec,
    MLPSpec,
)
from paceline.runner.models.config import NO_ATTENTION, ModelConfig
from paceline.runner.models.description.altup import (
    describe_altup,
    describe_laurel,
    describe_layer_altup,
)
from paceline.runner.models.description.experts import describe_moe
from paceline.runner.models.description.inputs import describe_input, describe_inputs
from paceline.runner.models.description.latent import describe_latent
from paceline.runner.models.description.tensors import (
    LayerTensors,
    joined,
    residual_norm,
    tensor_names,
)
from paceline.runner.models.experts import MoESpec
from paceline.runner.models.gguf_config import HEAD
from paceline.runner.models.linear_spec import KVScale, LinearSpec, NormSpec
from paceline.runner.models.rope import Rope
from paceline.runner.models.tensor_spec import GGUFForm, Shape, TensorSpec


def describe(config: ModelConfig, max_model_len: int | None = None) -> DecoderSpec:
    """The only place that reads traits and names tensors.

    `max_model_len` is the length of the longest sequence to compute, if that is not the model's.
    """
    longest = max_model_len or config.max_position
    table = (config.vocab, config.width)
    head, older = "lm_head.weight", config.traits.decoder.older_head
    older_heads = (f"{older}.weight",) if older else ()
    copies = (head, *older_heads) if config.tied_embedding else ()
    name, *aliases = tensor_names(config, f"{config.traits.name('embed_tokens')}.weight")
    embedding = TensorSpec(name, table, GGUFForm("token_embd.weight"), copies, tuple(aliases))
    own_head = TensorSpec(head, table, GGUFForm(HEAD), aliases=older_heads)
    return DecoderSpec(
        architecture=config.architecture,
        embedding=embedding,
        layers=tuple(_layer(config, layer, longest) for layer in range(config.layers)),
        norm=residual_norm(config, config.traits.name("norm"), config.traits.norms.last_in_gguf),
        head=LinearSpec((embedding if config.tied_embedding else own_head,)),
        embedding_scale=_embedding_scale(config),
        altup=None if config.altup is None else describe_altup(config, config.altup),
        inputs=None if config.input_sizes is None else describe_inputs(config, config.input_sizes),
        rounds_scale=config.traits.scaled_embedding,
        logit_scale=config.multipliers.logits,
        logit_cap=config.logit_cap,
        chunk=config.chunk,
        vision=config.vision,
    )


def _embedding_scale(config: ModelConfig) -> float:
    """The residual stream is kept divided by the multiplier of what layers add to it. The norms
    that read it compute the same, with an eps to match."""
    scale = config.width**0.5 if config.traits.scaled_embedding else 1.0
    return scale * config.multipliers.embedding / config.multipliers.residual


def _layer(config: ModelConfig, layer: int, longest: int) -> LayerSpec:
    tensors, attention, latent, state = LayerTensors(config, layer), None, None, None
    if config.windows[layer] != NO_ATTENTION:
        if config.latent is None:
            attention = _attention(config, layer, longest, tensors)
        else:
            rope = _rope(config, layer, longest)
            latent = describe_latent(config, config.latent, rope, tensors)
    if (states := config.states) is not None and states.layers[layer]:
        norm = tensors.residual_norm(config.traits.norms.attention, "attn_norm")
        state = states.sizes.describe(tensors, norm)
    mlp = _mlp_or_moe(config, layer, tensors)
    scale = None
    if config.traits.layer_scale:
        scale = tensors.tensor("layer_scalar", "layer_output_scale.weight", 1)
    own = None
    if config.input_sizes is not None:
        own = describe_input(config, config.input_sizes.width, tensors)
    laurel = streams = None
    if (altup := config.altup) is not None:
        laurel = describe_laurel(config, altup, tensors)
        streams = describe_layer_altup(config, altup, tensors)
    return LayerSpec(
        attention, mlp, config.traits.parallel, scale, own, latent, state, laurel, streams
    )


def _mlp_or_moe(config: ModelConfig, layer: int, tensors: LayerTensors) -> MLPSpec | MoESpec | None:
    traits = config.traits.experts
    if config.states is not None and not config.states.mlps[layer]:
        return None
    if traits is not None and config.experts is not None and config.experts.layers[layer]:
        return describe_moe(config, config.experts, traits, tensors)
    return _mlp(config, layer, tensors)


def _attention(
    config: ModelConfig, layer: int, longest: int, tensors: LayerTensors
) -> AttentionSpec:
    traits, window, names = config.traits, config.windows[layer], config.traits.norms
    heads = config.heads_of(layer)
    attention = AttentionSpec(
        norm=tensors.input_norm(names.attention, "attn_norm"),
        qkv=_qkv(config, layer, tensors),
        heads=config.heads,
        kv_heads=heads.kv_heads,
        head_dim=heads.head_dim,
        rope=_rope(config, layer, longest),
        rotary_dim=heads.head_dim if config.global_heads else config.rotary_dim,
        scale=config.query_scale,
        output=tensors.linear(
            "self_attn.o_proj",
            "attn_output",
            (config.width, config.heads * heads.head_dim),
            has_bias=config.output_bias,
        ),
        head_norms=_head_norms(config, layer, tensors) if traits.qk_norm else None,
        growth=config.growth if config.grows(layer) else None,
        window=window,
        score_cap=config.score_cap,
        output_norm=tensors.output_norm(names.attention_output, "post_attention_norm"),
        sinks=tensors.tensor("self_attn.sinks", "attn_sinks.weight", config.heads)
        if traits.sinks
        else None,
        gated=traits.gated_attention,
        reads=config.read_by(layer),
        value_norm=config.norm_eps if traits.value_norm else None,
        adjacent_pairs=traits.adjacent_pairs,
    )
    return _with_kv_scales(attention, tensors) if config.quantization.has_kv_scales else attention


def _rope(config: ModelConfig, layer: int, longest: int) -> Rope:
    """Without a rotation, all frequencies are zero."""
    rope = (config.rope if config.windows[layer] is None else config.local_rope).at(longest)
    return Rope.plain((0.0,) * len(rope.frequencies)) if config.stays(layer) else rope


def _head_norms(config: ModelConfig, layer: int, tensors: LayerTensors) -> HeadNorms | None:
    shape = config.heads_of(layer)
    norms, dim = config.traits.qk_norms, shape.head_dim
    if norms.bare:  # rotations do not change the length of a head
        bare = NormSpec(dim, config.norm_eps, 0.0)
        return None if config.stays(layer) else HeadNorms(bare, bare)
    heads, kv_heads = (config.heads, shape.kv_heads) if norms.whole else (1, 1)
    query = tensors.norm("self_attn.q_norm", "attn_q_norm", heads * dim)
    key = query  # of a layer that computes no keys
    if config.read_by(layer) is None:
        key = tensors.norm("self_attn.k_norm", "attn_k_norm", kv_heads * dim)
    return HeadNorms(query, key, norms.whole, norms.rotated)


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
        folded, norms = (None, None, values), replace(norms, query=query, key=key)
    outputs = KVScale(of_values, divides=False, has_bias=False)
    return replace(
        attention,
        qkv=replace(attention.qkv, folded=folded),
        output=replace(attention.output, folded=(outputs,)),
        head_norms=norms,
    )


def _qkv(config: ModelConfig, layer: int, tensors: LayerTensors) -> LinearSpec:
    traits, width, shape = config.traits, config.width, config.heads_of(layer)
    has_bias = traits.qkv_bias or config.attention_bias
    queries, keys = config.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    if traits.fused_linears:
        shape = (queries + 2 * keys, width)
        return tensors.linear("self_attn.qkv_proj", "attn_qkv", shape, has_bias)
    gated = 2 * queries if traits.gated_attention else queries
    values = "k" if config.keys_as_values and config.windows[layer] is None else "v"
    names = [("q", gated, config.heads)]
    if config.read_by(layer) is None:
        names += [("k", keys, shape.kv_heads), (values, keys, 0)]
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


def _mlp(config: ModelConfig, layer: int, tensors: LayerTensors) -> MLPSpec:
    traits, names = config.traits, config.traits.norms
    inner = config.mlp_width if config.read_by(layer) is None else config.reading_mlp_width
    return MLPSpec(
        norm=tensors.input_norm(names.mlp, names.mlp_in_gguf),
        gate_up=_gate_up(config, inner, tensors),
        down=tensors.linear("mlp.down_proj", "ffn_down", (config.width, inner), config.mlp_bias),
        activation=traits.activation,
        output_norm=tensors.output_norm(names.mlp_output, "post_ffw_norm"),
        gated=traits.gated_mlp,
        xielu=_xielu(tensors) if traits.activation == "xielu" else None,
        sparsity=0.0 if config.altup is None else config.altup.sparsity[layer],
    )


def _xielu(tensors: LayerTensors) -> XIELU:
    """GGUF files have these numbers in their headers."""
    up, down = (tensors.tensor(f"mlp.act_fn.alpha_{sign}", "", 1) for sign in "pn")
    beta, eps = (tensors.tensor(f"mlp.act_fn.{name}", "") for name in ("beta", "eps"))
    return XIELU(up, down, beta, eps)


def _gate_up(config: ModelConfig, inner: int, tensors: LayerTensors) -> LinearSpec:
    width, traits = config.width, config.traits
    if traits.fused_linears or traits.fused_gate_up:
        return tensors.linear("mlp.gate_up_proj", "ffn_up", (2 * inner, width), config.mlp_bias)
    return joined(
        tensors.linear(f"mlp.{name}_proj", f"ffn_{name}", (inner, width), config.mlp_bias)
        for name in (("gate", "up") if traits.gated_mlp else ("up",))
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
