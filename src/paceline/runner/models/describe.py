"""Describes a model: from its sizes and the traits of its architecture to every tensor."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path

from paceline.core.errors import ConfigError
from paceline.core.system.files import json_object
from paceline.runner.models.architecture import (
    AttentionSpec,
    DecoderSpec,
    ExpertSizes,
    ExpertSpec,
    HeadNorms,
    KVScale,
    LayerSpec,
    LinearSpec,
    MLPSpec,
    MoESpec,
    NormSpec,
)
from paceline.runner.models.config import ModelConfig
from paceline.runner.models.gguf_config import HEAD
from paceline.runner.models.tensor_spec import GGUFForm, Shape, StackedForm, TensorSpec
from paceline.runner.models.traits import ExpertNames


def describe(config: ModelConfig, max_model_len: int | None = None) -> DecoderSpec:
    """The only place that reads traits and names tensors.

    `max_model_len` is the length of the longest sequence to compute, if that is not the model's.
    """
    longest = max_model_len or config.max_position
    table = (config.vocab, config.width)
    head, older = "lm_head.weight", config.traits.decoder.older_head
    older_heads = (f"{older}.weight",) if older else ()
    copies = (head, *older_heads) if config.tied_embedding else ()
    name, *aliases = _names(config, "embed_tokens.weight")
    embedding = TensorSpec(name, table, GGUFForm("token_embd.weight"), copies, tuple(aliases))
    own_head = TensorSpec(head, table, GGUFForm(HEAD), aliases=older_heads)
    return DecoderSpec(
        architecture=config.architecture,
        embedding=embedding,
        layers=tuple(_layer(config, layer, longest) for layer in range(config.layers)),
        norm=_norm(config, "norm", "output_norm", config.width),
        head=LinearSpec((embedding if config.tied_embedding else own_head,)),
        embedding_scale=config.width**0.5 if config.traits.scaled_embedding else 1.0,
        logit_cap=config.logit_cap,
        vision=config.vision,
    )


def _layer(config: ModelConfig, layer: int, longest: int) -> LayerSpec:
    tensors = LayerTensors(config, layer)
    attention = _attention(config, layer, longest, tensors)
    names = config.traits.experts
    if names is not None and config.experts is not None and config.experts.layers[layer]:
        return LayerSpec(attention, _moe(config, config.experts, names, tensors))
    return LayerSpec(attention, _mlp(config, tensors))


def _attention(
    config: ModelConfig, layer: int, longest: int, tensors: "LayerTensors"
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
        norm=tensors.norm("input_layernorm", "attn_norm", config.width),
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
        sinks=tensors.vector("self_attn.sinks", "attn_sinks", config.heads)
        if traits.sinks
        else None,
    )
    return _with_kv_scales(attention, tensors) if config.quantization.has_kv_scales else attention


def _with_kv_scales(attention: AttentionSpec, tensors: "LayerTensors") -> AttentionSpec:
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


def _qkv(config: ModelConfig, tensors: "LayerTensors") -> LinearSpec:
    traits, width = config.traits, config.width
    has_bias = traits.qkv_bias or config.attention_bias
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    if traits.fused_linears:
        shape = (queries + 2 * keys, width)
        return tensors.linear("self_attn.qkv_proj", "attn_qkv", shape, has_bias)
    names = (("q", queries, config.heads), ("k", keys, config.kv_heads), ("v", keys, 0))
    return _joined(
        tensors.linear(
            f"self_attn.{name}_proj",
            f"attn_{name}",
            (outputs, width),
            has_bias,
            paired_heads=heads if traits.paired_in_gguf else 0,
        )
        for name, outputs, heads in names
    )


def _mlp(config: ModelConfig, tensors: "LayerTensors") -> MLPSpec:
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


def _moe(
    config: ModelConfig, sizes: ExpertSizes, names: ExpertNames, tensors: "LayerTensors"
) -> MoESpec:
    """A GGUF file has one tensor for all experts; HF's files have one for each, or for all."""
    width, inner = config.width, sizes.width

    def linear(expert: int, name: str, gguf: str, shape: tuple[int, int]) -> LinearSpec:
        stem = f"{names.block}.experts.{expert}.{name}"
        has_bias = names.has_biases
        return tensors.linear(stem, f"ffn_{gguf}_exps", shape, has_bias, part=expert)

    def one(expert: int) -> ExpertSpec:
        gate = linear(expert, names.gate, "gate", (inner, width))
        up = linear(expert, names.up, "up", (inner, width))
        down = linear(expert, names.down, "down", (width, inner))
        if names.is_stacked:
            stem = tensors.stem(f"{names.block}.experts")
            gate = _stacked(gate, StackedForm(f"{stem}.gate_up_proj", expert, 0, 2))
            up = _stacked(up, StackedForm(f"{stem}.gate_up_proj", expert, 1, 2))
            down = _stacked(down, StackedForm(f"{stem}.down_proj", expert))
        return ExpertSpec(_joined([gate, up]), down)

    router = f"{names.block}.{names.router}"
    return MoESpec(
        norm=tensors.norm("post_attention_layernorm", "ffn_norm", width),
        router=replace(
            tensors.linear(router, "ffn_gate_inp", (sizes.count, width), names.has_biases),
            quantized=(),
        ),
        experts=tuple(one(expert) for expert in range(sizes.count)),
        chosen=sizes.chosen,
        shares_sum_to_one=sizes.shares_sum_to_one,
        activation=config.traits.activation,
        clamp=sizes.clamp,
    )


def _stacked(linear: LinearSpec, form: StackedForm) -> LinearSpec:
    """A linear whose tensors are in one of all experts; that of the biases has a name like it."""
    of_biases = replace(form, name=f"{form.name}_bias")
    return replace(
        linear,
        weights=tuple(replace(one, stack=form) for one in linear.weights),
        biases=tuple(replace(one, stack=of_biases) for one in linear.biases),
    )


def _gate_up(config: ModelConfig, tensors: "LayerTensors") -> LinearSpec:
    width, inner = config.width, config.mlp_width
    if config.traits.fused_linears:
        return tensors.linear("mlp.gate_up_proj", "ffn_up", (2 * inner, width), config.mlp_bias)
    return _joined(
        tensors.linear(f"mlp.{name}_proj", f"ffn_{name}", (inner, width), config.mlp_bias)
        for name in ("gate", "up")
    )


@dataclass(frozen=True, slots=True)
class LayerTensors:
    """Names the tensors of one layer, in HF's files and in GGUF files."""

    config: ModelConfig
    layer: int

    def norm(self, name: str, gguf: str, width: int) -> NormSpec:
        return _norm(self.config, *self._names(name, gguf), width)

    def linear(
        self,
        name: str,
        gguf: str,
        shape: tuple[int, int],
        has_bias: bool = False,
        paired_heads: int = 0,
        part: int | None = None,
    ) -> LinearSpec:
        name, gguf = self._names(name, gguf)

        def one(kind: str, its: Shape) -> TensorSpec:
            whole, *aliases = _names(self.config, f"{name}.{kind}")
            form = GGUFForm(f"{gguf}.{kind}", 0.0, paired_heads, part)
            return TensorSpec(whole, its, form, aliases=tuple(aliases))

        bias = (one("bias", shape[:1]),) if has_bias else ()
        weight = one("weight", shape)
        format = self.config.quantization.format_of(weight.name.removesuffix(".weight"))
        return LinearSpec((weight,), bias, () if format is None else (format,))

    def vector(self, name: str, gguf: str, size: int) -> TensorSpec:
        """A tensor that HF's files name without an ending."""
        name, gguf = self._names(name, gguf)
        whole, *aliases = _names(self.config, name)
        return TensorSpec(whole, (size,), GGUFForm(f"{gguf}.weight"), aliases=tuple(aliases))

    def kv_scale(self, kind: str) -> TensorSpec:
        """The scale of keys or values in an fp8 KV cache, under one of the names in use."""
        stems = ("self_attn", f"self_attn.{kind}_proj", "self_attn.attn")
        named = [f"{stem}.{kind}_scale" for stem in stems]
        named.append(f"self_attn.{kind}_proj.output_scale")
        found = [whole for name in named for whole in _names(self.config, self._names(name, "")[0])]
        return TensorSpec(found[0], (), GGUFForm(found[0]), aliases=tuple(found[1:]))

    def stem(self, name: str) -> str:
        """The whole name of a part of the layer in HF's files."""
        return _names(self.config, self._names(name, "")[0])[0]

    def _names(self, name: str, gguf: str) -> tuple[str, str]:
        return f"layers.{self.layer}.{name}", f"blk.{self.layer}.{gguf}"


def _names(config: ModelConfig, name: str) -> tuple[str, str]:
    """The name of a tensor of the decoder in HF's files, and an alias: that of older files, or of
    those of sentence-transformers, which begin with nothing."""
    decoder = config.traits.decoder
    older = f"{decoder.older}.{name}" if decoder.older else name
    return f"{decoder.prefix}.{name}", older


def _norm(config: ModelConfig, name: str, gguf: str, width: int) -> NormSpec:
    offset = config.traits.norm_offset
    # A GGUF file holds what the norm multiplies by.
    whole, *aliases = _names(config, f"{name}.weight")
    form = GGUFForm(f"{gguf}.weight", offset)
    weight = TensorSpec(whole, (width,), form, aliases=tuple(aliases))
    return NormSpec(weight, config.norm_eps, offset)


def _joined(given: Iterable[LinearSpec]) -> LinearSpec:
    """Linears of the same input as one."""
    linears = list(given)
    formats = tuple(format for linear in linears for format in linear.formats)
    return LinearSpec(
        tuple(weight for linear in linears for weight in linear.weights),
        tuple(bias for linear in linears for bias in linear.biases),
        formats if any(linear.quantized for linear in linears) else (),
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
