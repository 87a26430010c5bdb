"""Divide the description of a decoder among ranks."""

from dataclasses import dataclass, replace

from paceline.core.errors import ConfigError
from paceline.runner.models.architecture import AttentionSpec, DecoderSpec, LayerSpec, MLPSpec
from paceline.runner.models.config import ModelConfig
from paceline.runner.models.experts import ExpertSpec, MoESpec, SharedExpertSpec
from paceline.runner.models.latent import LatentAttentionSpec
from paceline.runner.models.linear_spec import LinearSpec
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
        found.append("states of layers are not divided")
    if model.kv_heads % size and size % model.kv_heads:
        found.append(f"the model has {model.kv_heads} KV heads, no multiple and no divisor of it")
    if model.global_heads is not None and size > 1:
        found.append("layers of the model have different heads, which are not divided")
    if model.has_whole_norms and size > 1:
        found.append("the norms of the model span all heads, which no rank has")
    return found


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
    assert layer.state is None and mlp is not None  # `unfit` refuses others
    if isinstance(mlp, MLPSpec):
        split = _gate_up(mlp.gate_up, mlp.gated, shard)
        mlp = replace(mlp, gate_up=split, down=_some_inputs(mlp.down, shard))
    else:
        mlp = _moe(mlp, shard)
    return replace(
        layer,
        attention=None if attention is None else _attention(attention, shard),
        mlp=mlp,
        latent=None if latent is None else _latent(latent, shard),
    )


def _attention(spec: AttentionSpec, shard: Shard) -> AttentionSpec:
    heads, kv_heads = shard.of(spec.heads), shard.of_kv_heads(spec.kv_heads)
    queries = _times(heads, spec.head_dim)
    keys = _times(kv_heads, spec.head_dim, spec.heads)
    values = _times(kv_heads, spec.head_dim, spec.heads + spec.kv_heads)
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


def _times(run: Run, size: int, before: int = 0) -> Run:
    """The elements of groups `run`, each of `size` elements, after `before` groups."""
    first, end = run
    return (before + first) * size, (before + end) * size
