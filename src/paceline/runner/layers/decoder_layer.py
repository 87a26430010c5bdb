"""Decoder layers in torch: attention and MLP, each added to the residual stream."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.runner.attention_backend import Prepared
from paceline.runner.batch import Batch
from paceline.runner.kv_store import KVStore
from paceline.runner.layers.factory import LayerFactory
from paceline.runner.layers.latent_attention import LatentAttention
from paceline.runner.layers.linear import Linear
from paceline.runner.layers.mlp import MLP, MoE
from paceline.runner.layers.norm import LayerInputs, Rotation, add_linear
from paceline.runner.layers.per_layer_input import PerLayerInput, TokenInputs
from paceline.runner.layers.states.mixers import FEATURES, state_mixer
from paceline.runner.models.architecture import (
    AttentionSpec,
    DecoderSpec,
    LayerSpec,
    MLPSpec,
    attentions,
    parts_of,
)
from paceline.runner.models.layer_groups import BackendSupport, Values
from paceline.runner.models.rope import Rope
from paceline.runner.state_store import StateRows
from paceline.runner.vision.spec import TOWER_FEATURES


@dataclass(frozen=True, slots=True, eq=False)
class LayerContext:
    """Inputs of a step that all layers share."""

    rotations: dict[Rope, Rotation]
    kv: KVStore
    cells: Sequence[Tensor]  # by layer: [positions], cells to write in the store
    attention: Prepared
    states: StateRows | None = None  # None: no layer has states
    inputs: Sequence[Tensor] = ()  # by layer: [positions, width], its own inputs


class SelfAttention:
    """Self-attention. Queries, keys and values are adjacent, so rotation and write are one
    operation each.

    qkv   | gates | q q q q q q q q q | k k k | v v v |      [positions, …, head_dim]
                    rotated ────────────────┘ written ┘
                                        written ──────┘
    """

    def __init__(self, factory: LayerFactory[Linear], spec: AttentionSpec, layer: int) -> None:
        self._spec, self._layer = spec, layer
        self._rotated = spec.heads + spec.own_kv_heads
        self.qkv = factory.qkv(spec)
        self.norm = factory.head_norm(spec)
        self._value_norm = factory.value_norm(spec)
        self._norms_rotated = spec.head_norms is not None and spec.head_norms.rotated
        self.output = factory.summed(spec.output)
        self._sinks = None if spec.sinks is None else factory.read(spec.sinks)  # [heads]

    def __call__(self, x: Tensor, context: LayerContext) -> Tensor:
        """Everything but the linear `output`, which the layer adds to the residual stream."""
        spec, layer = self._spec, self._layer
        found = self.qkv(x).view(len(x), -1, spec.head_dim)
        gates, qkv = found[:, : spec.gates], found[:, spec.gates :]
        rotated = qkv[:, : self._rotated]
        rotation = context.rotations[spec.rope]
        if self._norms_rotated:
            rotation.rotate(rotated)
        if self.norm is not None:
            self.norm.apply_to(rotated)
        if not self._norms_rotated:
            rotation.rotate(rotated)
        if spec.reads is None:
            if self._value_norm is not None:
                self._value_norm.apply_to(qkv[:, self._rotated :])
            context.kv.put(context.cells[layer], qkv[:, spec.heads :])
        else:
            layer = spec.reads
        query = qkv[:, : spec.heads]
        how = spec.window, spec.scale, spec.score_cap, self._sinks
        seen = context.attention.attend(query, layer, *how)
        if spec.gated:
            seen = seen * gates.sigmoid()
        return seen.view(len(x), -1)  # [positions, heads * head_dim]


@dataclass(frozen=True, slots=True, eq=False)
class Mixed:
    """What a layer has of each position from others, before the last linears, [positions, …]."""

    seen: Tensor | None  # by attention
    read: Tensor | None  # from the state
    given: Tensor | None  # the layer's own input

    def at(self, positions: Tensor) -> "Mixed":
        parts = self.seen, self.read, self.given
        return Mixed(*(None if one is None else one[positions] for one in parts))


class DecoderLayer:
    """A decoder layer. It adds to the residual stream in place: the sum is part of the linear."""

    def __init__(self, factory: LayerFactory[Linear], spec: LayerSpec, layer: int) -> None:
        self.attention, self.latent, self.attention_norm = None, None, None
        if (attention := spec.attention) is not None:
            self.attention = SelfAttention(factory, attention, layer)
            self.attention_norm = factory.optional_norm(attention.output_norm)
        if spec.latent is not None:
            self.latent = LatentAttention(factory, spec.latent, layer)
        self.state = None
        if spec.state is not None:
            self.state = state_mixer(factory, spec.state, layer)
        self._input_norm = None
        if (mixer := attention or spec.latent or spec.state) is not None:
            self._input_norm = factory.input_norm(mixer.norm)
        self.mlp = None
        if (mlp := spec.mlp) is not None:
            self.mlp = MLP(factory, mlp) if isinstance(mlp, MLPSpec) else MoE(factory, mlp)
        self._is_parallel = spec.parallel
        self._scale = None if spec.scale is None else float(factory.read(spec.scale))
        self._input = None if spec.input is None else PerLayerInput(factory, spec.input)
        self._layer = layer

    def __call__(
        self, hidden: Tensor, context: LayerContext, wanted: Tensor | None = None
    ) -> Tensor:
        """The residual stream after this layer, of all or of the wanted positions."""
        mixed = self.mix(hidden, context)
        if wanted is not None:
            hidden, mixed = hidden[wanted], mixed.at(wanted)
        self.finish(hidden, mixed)
        return hidden

    def mix(self, hidden: Tensor, context: LayerContext) -> "Mixed":
        """What the layer has of each position before the last linears of its mixers."""
        given = context.inputs[self._layer] if context.inputs else None
        if self._input_norm is None:
            return Mixed(None, None, given)
        x = self._input_norm(hidden)
        seen = self._attend(x, context)
        if self.state is None:
            return Mixed(seen, None, given)
        assert context.states is not None, "a step without states"
        return Mixed(seen, self.state(x, context.states), given)

    def _attend(self, x: Tensor, context: LayerContext) -> Tensor | None:
        if self.attention is not None:
            return self.attention(x, context)
        if self.latent is None:
            return None
        rotation = context.rotations[self.latent.spec.rope]
        cells = context.cells[self.latent.layer]
        return self.latent(x, rotation, context.kv, cells, context.attention)

    def finish(self, hidden: Tensor, mixed: "Mixed") -> None:
        """Add what was mixed, the MLP and the layer's own input to the residual stream."""
        attention = self.attention or self.latent
        if self._is_parallel and self.mlp is not None:  # it reads what attention has read
            self.mlp.add_to(hidden)
        if attention is not None and mixed.seen is not None:
            add_linear(hidden, mixed.seen, attention.output, self.attention_norm)
        if self.state is not None and mixed.read is not None:
            self.state.output.add_to(hidden, mixed.read)
        if self.mlp is not None and not self._is_parallel:
            self.mlp.add_to(hidden)
        if self._input is not None and mixed.given is not None:
            self._input.add_to(hidden, mixed.given)
        if self._scale is not None:
            hidden.mul_(self._scale)


# The store has one shape for all layers.
STORED: dict[str, Values] = {
    "number of heads of keys": lambda layer: [one.kv_heads for one in attentions(layer)],
    "size of heads": lambda layer: [one.head_dim for one in attentions(layer)],
}
TORCH = BackendSupport(
    backend="torch",
    features=frozenset(
        {
            "embedding_scale",
            "logit_scale",
            "logit_cap",
            "norm.centred",
            "norm.bias",
            "inputs",
            "layers.parallel",
            "layers.scale",
            "layers.input",
            "layers.input.activation=gelu_pytorch_tanh",
            "layers.attention.reads",
            "layers.attention.value_norm",
            "layers.attention.norm=none",
            "layers.attention.norm.centred",
            "layers.attention.norm.bias",
            "layers.attention.qkv.biases",
            "layers.attention.head_norms",
            "layers.attention.head_norms.whole",
            "layers.attention.head_norms.rotated",
            "layers.attention.window",
            "layers.attention.score_cap",
            "layers.attention.output.biases",
            "layers.attention.output_norm",
            "layers.attention.sinks",
            "layers.mlp.norm=none",
            "layers.mlp.norm.centred",
            "layers.mlp.norm.bias",
            "layers.mlp.gated",
            "layers.mlp.xielu",
            "layers.mlp.activation=gelu_pytorch_tanh",
            "layers.mlp.activation=relu2",
            "layers.mlp.activation=xielu",
            "layers.mlp.gate_up.biases",
            "layers.mlp.down.biases",
            "layers.mlp.output_norm",
            "layers.mlp=moe",
            "layers.mlp.router.biases",
            "layers.mlp.experts.gate_up.biases",
            "layers.mlp.experts.down.biases",
            "layers.mlp.clamp",
            "layers.mlp.routing.scores=sigmoid",
            "layers.mlp.routing.groups",
            "layers.mlp.routing.scale",
            "layers.mlp.correction",
            "layers.mlp.shared",
            "layers.mlp.shared.gate",
            "layers.mlp.shared.gate_up.biases",
            "layers.mlp.shared.down.biases",
            "layers.attention.rope.axes",
            "layers.attention.gated",
            "layers.latent",
            "layers.latent=mla",
            "layers.latent.query_latent",
            "layers.latent.query_latent.linear.biases",
            "layers.latent.latent.biases",
            "layers.latent.output.biases",
            "vision.deep",
            *FEATURES,
            "vision.reads_itself",
        }
    )
    | TOWER_FEATURES,
)


class TorchStack:
    """All layers in torch, the reference for other implementations.

    After the attention of the last layer, only wanted positions are computed.
    """

    def __init__(self, factory: LayerFactory[Linear], spec: DecoderSpec) -> None:
        layers, self._dtype = spec.layers, factory.dtype
        self._inputs = None if spec.inputs is None else TokenInputs(factory, spec.inputs)
        self.ropes = {
            rope: torch.tensor((rope.frequencies, rope.amplitudes), device=factory.device)
            for rope in dict.fromkeys(parts_of(layers, Rope))
        }  # [2, head_dim / 2] each
        self._axes = {
            rope: torch.tensor(rope.axes, device=factory.device) for rope in self.ropes if rope.axes
        }  # [head_dim / 2] each
        self.layers = [DecoderLayer(factory, spec, layer) for layer, spec in enumerate(layers)]

    def __call__(
        self,
        hidden: Tensor,
        batch: Batch,
        kv: KVStore,
        attention: Prepared,
        wanted: Tensor | None = None,
        inputs: LayerInputs | None = None,
    ) -> Tensor:
        """The residual stream after all layers. The layers overwrite `hidden`."""
        context = self.context(hidden, batch, kv, attention)
        last = len(self.layers) - 1
        for number, layer in enumerate(self.layers):
            if batch.images is not None:
                batch.images.add_before(number, hidden)
            if inputs is not None:
                inputs.keep(number, hidden)
            hidden = layer(hidden, context, wanted if number == last else None)
        return hidden

    def context(
        self, hidden: Tensor, batch: Batch, kv: KVStore, attention: Prepared
    ) -> LayerContext:
        """The context of a step, from the residual stream where it begins."""
        rotations = {
            rope: Rotation.of(self._rotary_positions(rope, batch), tensor, self._dtype)
            for rope, tensor in self.ropes.items()
        }
        states = None
        if batch.states is not None:
            states = StateRows(batch.states, batch.row_start, batch.position)
        given = () if self._inputs is None else self._inputs(batch.tokens, hidden).unbind(1)
        cells = kv.cells(batch.write_cell).unbind()
        return LayerContext(rotations, kv, cells, attention, states, given)

    def _rotary_positions(self, rope: Rope, batch: Batch) -> Tensor:
        """Positions for the rotary embedding: [positions], or [positions, pairs]."""
        if rope not in self._axes or batch.coordinates is None:
            return batch.position
        return batch.coordinates[:, self._axes[rope]]
