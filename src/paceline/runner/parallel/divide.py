"""Divide the description of a decoder among ranks."""

from dataclasses import dataclass, replace

from paceline.core.errors import ConfigError
from paceline.runner.models.architecture import AttentionSpec, DecoderSpec, LayerSpec, MLPSpec
from paceline.runner.models.config import ModelConfig
from paceline.runner.models.experts import ExpertSpec, MoESpec, SharedExpertSpec
from paceline.runner.models.latent import LatentAttentionSpec
from paceline.runner.models.linear_spec import LinearSpec
from paceline.runner.models.states.gated_delta import GatedDeltaSizes, GatedDeltaSpec
from paceline.runner.models.states.mamba2 import Mamba2Sizes, Mamba2Spec
from paceline.runner.models.states.state_sizes import StateLayers, StateSizes, StateSpec
from paceline.runner.models.tensor_spec import Run, TensorSpec

MOST_RANKS = 64  # largest number that an error message suggests


@dataclass(frozen=True, slots=True)
class Shard:
    """One of `size` equal parts of a model."""

    rank: int
    size: int

    def of(self, total: int) -> Run:
        """The range of this rank in `total` elements."""
        each = total // self.size
        return self.rank * each, (self.rank + 1) * each

    def of_kv_heads(self, total: int) -> Run:
        """The KV heads that the query heads of this rank read. If there are fewer KV heads than
        ranks, several ranks hold the same one."""
        if total >= self.size:
            return self.of(total)
        head = self.rank * total // self.size
        return head, head + 1

    def config(self, model: ModelConfig) -> ModelConfig:
        """The configuration of this part of a model."""
        first, end = self.of_kv_heads(model.kv_heads)
        return replace(
            model,
            heads=model.heads // self.size,
            kv_heads=end - first,
            mlp_width=model.mlp_width // self.size,
            states=_states(model, self.size),
        )


def check_size(model: ModelConfig, size: int) -> None:
    """ConfigError if a model cannot be divided among `size` ranks."""
    if reasons := unfit(model, size):
        fitting = [str(n) for n in range(1, MOST_RANKS + 1) if not unfit(model, n)]
        raise ConfigError(
            f"tensor_parallel_size is {size}, but {' and '.join(reasons)}; sizes that fit this "
            f"model are {', '.join(fitting)}"
        )


def unfit(model: ModelConfig, size: int) -> list[str]:
    """Why a model cannot be divided among `size` ranks; empty if it can."""
    divided = {
        "attention heads": model.heads,
        "columns of the MLP": model.mlp_width,
        "token ids": model.vocab,
    }
    if model.experts is not None:
        divided["columns of an expert"] = model.experts.width
        divided["columns of the shared expert"] = model.experts.shared_width
        if all(model.experts.layers):
            del divided["columns of the MLP"]
    found = [
        f"the model has {total} {name}, which is no multiple of it"
        for name, total in divided.items()
        if total % size
    ]
    if model.has_experts_beside_mlp and size > 1:
        found.append("experts beside an MLP are not divided")
    if model.altup is not None and size > 1:
        found.append("several residual streams are not divided")
    if model.states is not None and size > 1:
        found += _unfit_states(model.states.sizes, size)
    if model.kv_heads % size and size % model.kv_heads:
        found.append(f"the model has {model.kv_heads} KV heads, no multiple and no divisor of it")
    if model.global_heads is not None and size > 1:
        found.append("layers of the model have different heads, which are not divided")
    if model.has_whole_norms and size > 1:
        found.append("the norms of the model span all heads, which no rank has")
    return found


def _unfit_states(sizes: StateSizes, size: int) -> list[str]:
    """Why states cannot be divided: heads that share keys stay together."""
    if isinstance(sizes, GatedDeltaSizes):
        name, total = "heads of keys in gated delta nets", sizes.key_heads
    elif isinstance(sizes, Mamba2Sizes):
        name, total = "groups of heads in Mamba-2", sizes.groups
    else:
        kind = type(sizes).__name__.removesuffix("Sizes")
        return [f"states of {kind} are not divided"]
    return [f"the model has {total} {name}, which is no multiple of it"] if total % size else []


def _states(model: ModelConfig, size: int) -> StateLayers | None:
    """The states of one of `size` parts of a model."""
    layers = model.states
    if layers is None:
        return None
    sizes = layers.sizes
    if isinstance(sizes, GatedDeltaSizes):
        heads = sizes.key_heads // size, sizes.value_heads // size
        sizes = replace(sizes, key_heads=heads[0], value_heads=heads[1])
    elif isinstance(sizes, Mamba2Sizes):
        sizes = replace(sizes, heads=sizes.heads // size, groups=sizes.groups // size)
    return replace(layers, sizes=sizes)


def divide(spec: DecoderSpec, shard: Shard) -> DecoderSpec:
    """The description of one rank's part.

        qkv, gate_up       some outputs: whole heads, and columns of the MLP or of each expert
        output, down       the matching inputs; the results of all ranks are summed
        embedding, head    some token ids
        norms, routers     complete; only rank 0 has the vision tower

    Only rank 0 has the biases of summed linears.
    """
    own = shard.of(spec.embedding.shape[0])
    return replace(
        spec,
        embedding=spec.embedding.part(0, own),
        layers=tuple(_layer(layer, shard) for layer in spec.layers),
        head=_some_outputs(spec.head, own),
    )


def _layer(layer: LayerSpec, shard: Shard) -> LayerSpec:
    attention, latent, mlp = layer.attention, layer.latent, layer.mlp
    if isinstance(mlp, MLPSpec):
        split = _gate_up(mlp.gate_up, mlp.gated, shard)
        mlp = replace(mlp, gate_up=split, down=_some_inputs(mlp.down, shard))
    elif mlp is not None:
        mlp = _moe(mlp, shard)
    return replace(
        layer,
        attention=None if attention is None else _attention(attention, shard),
        mlp=mlp,
        latent=None if latent is None else _latent(latent, shard),
        state=None if layer.state is None else _state(layer.state, shard),
    )


def _attention(spec: AttentionSpec, shard: Shard) -> AttentionSpec:
    heads, kv_heads = shard.of(spec.heads), shard.of_kv_heads(spec.kv_heads)
    each = 1 + spec.gated  # a query, and its gate
    queries = _times(heads, each * spec.head_dim)
    keys = _times(kv_heads, spec.head_dim, each * spec.heads)
    values = _times(kv_heads, spec.head_dim, each * spec.heads + spec.kv_heads)
    return replace(
        spec,
        qkv=_some_outputs(spec.qkv, queries, keys, values),
        heads=heads[1] - heads[0],
        kv_heads=kv_heads[1] - kv_heads[0],
        output=_some_inputs(spec.output, shard),
        sinks=None if spec.sinks is None else spec.sinks.part(0, heads),
    )


def _latent(spec: LatentAttentionSpec, shard: Shard) -> LatentAttentionSpec:
    """Some heads. Latent vectors are complete, so all ranks keep the same."""
    heads = shard.of(spec.heads)
    return replace(
        spec,
        query=_some_outputs(spec.query, _times(heads, spec.key_dim + spec.rope_dim)),
        expand=_some_outputs(spec.expand, _times(heads, spec.key_dim + spec.value_dim)),
        output=_some_inputs(spec.output, shard),
        heads=heads[1] - heads[0],
    )


def _state(spec: StateSpec, shard: Shard) -> StateSpec:
    """Some heads, with the queries and keys that they share."""
    if isinstance(spec, GatedDeltaSpec):
        return _gated_delta(spec, shard)
    assert isinstance(spec, Mamba2Spec)  # `unfit` refuses others
    return _mamba2(spec, shard)


def _gated_delta(spec: GatedDeltaSpec, shard: Shard) -> GatedDeltaSpec:
    key_heads, heads = shard.of(spec.key_heads), shard.of(spec.value_heads)
    keys, values = spec.key_heads * spec.key_dim, spec.value_heads * spec.value_dim
    key, value = _times(key_heads, spec.key_dim), _times(heads, spec.value_dim)
    mixed = key, _behind(keys, key), _behind(2 * keys, value)
    if spec.by_key_head:
        shared = spec.value_heads // spec.key_heads
        each = 2 * spec.key_dim + 2 * shared * spec.value_dim
        rates = _behind(spec.key_heads * each, _times(key_heads, 2 * shared))
        outputs = _times(key_heads, each), rates
    else:
        first = 2 * keys + values
        gates, rates = _behind(first, value), _behind(first + values, heads)
        outputs = *mixed, gates, rates, _behind(first + values + spec.value_heads, heads)
    return replace(
        spec,
        inputs=_some_outputs(spec.inputs, *outputs),
        key_heads=key_heads[1] - key_heads[0],
        value_heads=heads[1] - heads[0],
        convolution=spec.convolution.part(0, *mixed),
        log_decay=spec.log_decay.part(0, heads),
        decay_bias=spec.decay_bias.part(0, heads),
        output=_some_inputs(spec.output, shard),
    )


def _mamba2(spec: Mamba2Spec, shard: Shard) -> Mamba2Spec:
    heads, groups = shard.of(spec.heads), shard.of(spec.groups)
    inner, shared = spec.heads * spec.head_dim, spec.groups * spec.state_size
    value, key = _times(heads, spec.head_dim), _times(groups, spec.state_size)
    mixed = value, _behind(inner, key), _behind(inner + shared, key)
    times = _behind(2 * inner + 2 * shared, heads)
    norm, count = spec.gated_norm, groups[1] - groups[0]
    if norm is not None:
        norm = replace(norm, weight=norm.weight.part(0, value), groups=count)
    return replace(
        spec,
        inputs=_some_outputs(spec.inputs, value, *(_behind(inner, one) for one in mixed), times),
        heads=heads[1] - heads[0],
        groups=count,
        convolution=spec.convolution.part(0, *mixed),
        bias=None if spec.bias is None else spec.bias.part(0, *mixed),
        log_decay=spec.log_decay.part(0, heads),
        time_bias=spec.time_bias.part(0, heads),
        skip=spec.skip.part(0, heads),
        gated_norm=norm,
        output=_some_inputs(spec.output, shard),
    )


def _moe(spec: MoESpec, shard: Shard) -> MoESpec:
    """Each rank has a part of every expert, so all ranks compute the same number of rows."""
    experts = tuple(
        ExpertSpec(
            _gate_up(expert.gate_up, spec.gated_experts, shard), _some_inputs(expert.down, shard)
        )
        for expert in spec.experts
    )
    shared = None if spec.shared is None else _shared(spec.shared, spec.gated_experts, shard)
    return replace(spec, experts=experts, shared=shared)


def _shared(spec: SharedExpertSpec, gated: bool, shard: Shard) -> SharedExpertSpec:
    """The same of the shared expert; its gate is complete."""
    gate_up, down = _gate_up(spec.gate_up, gated, shard), _some_inputs(spec.down, shard)
    return replace(spec, gate_up=gate_up, down=down)


def _gate_up(linear: LinearSpec, gated: bool, shard: Shard) -> LinearSpec:
    if not gated:
        return _some_outputs(linear, shard.of(linear.outputs))
    width = linear.outputs // 2
    first, end = shard.of(width)
    return _some_outputs(linear, (first, end), (width + first, width + end))


def _some_inputs(linear: LinearSpec, shard: Shard) -> LinearSpec:
    """A linear over some inputs; the ranks' results are summed."""
    weights = tuple(one.part(1, shard.of(one.shape[1])) for one in linear.weights)
    return replace(linear, weights=weights, biases=linear.biases if shard.rank == 0 else ())


def _some_outputs(linear: LinearSpec, *runs: Run) -> LinearSpec:
    """A linear with some ranges of the outputs, numbered through all tensors."""
    weights: list[TensorSpec] = []
    biases: list[TensorSpec] = []
    begin = 0
    for index, weight in enumerate(linear.weights):
        own = [(a - begin, b - begin) for a, b in runs if begin <= a < begin + weight.shape[0]]
        weights.append(weight.part(0, *own))
        biases += [bias.part(0, *own) for bias in linear.biases[index : index + 1]]
        begin += weight.shape[0]
    return replace(linear, weights=tuple(weights), biases=tuple(biases))


def _behind(before: int, run: Run) -> Run:
    """The same elements after `before` others."""
    return before + run[0], before + run[1]


def _times(run: Run, size: int, before: int = 0) -> Run:
    """The elements of groups `run`, each of `size` elements, after `before` groups."""
    first, end = run
    return (before + first) * size, (before + end) * size
