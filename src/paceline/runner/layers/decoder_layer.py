"""Decoder layers in torch: attention and MLP, each added to the residual stream."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from paceline.runner.attention_backend import Prepared
from paceline.runner.batch import Batch
from paceline.runner.kv_store import KVStore
from paceline.runner.layers.altup import AltUp, LayerAltUp
from paceline.runner.layers.factory import LayerFactory
from paceline.runner.layers.linear import Linear
from paceline.runner.layers.mixers.mixer import LayerContext, Mixer
from paceline.runner.layers.mixers.table import mixers_of
from paceline.runner.layers.mlp import MLP, MoE
from paceline.runner.layers.norm import LayerInputs, Rotation
from paceline.runner.layers.per_layer_input import PerLayerInput, TokenInputs
from paceline.runner.models.architecture import DecoderSpec, LayerSpec, MLPSpec, parts_of
from paceline.runner.models.rope import Rope
from paceline.runner.state_store import StateRows
from paceline.runner.weights.renewal import WeightPart


class DecoderLayer:
    """A decoder layer: mixers of the same input, then an MLP. It adds to the residual stream in
    place: the sums are part of the linears."""

    def __init__(self, factory: LayerFactory[Linear], spec: LayerSpec, layer: int) -> None:
        self.mixers = mixers_of(factory, spec, layer)
        self._input_norm = factory.input_norm(spec.mixers[0].norm if spec.mixers else None)
        self.mlp = None
        if (mlp := spec.mlp) is not None:
            self.mlp = MLP(factory, mlp) if isinstance(mlp, MLPSpec) else MoE(factory, mlp)
        self._is_parallel = spec.parallel
        self._after_mlp: list[Mixer] = []
        if spec.input is not None:
            self._after_mlp.append(PerLayerInput(factory, spec.input, layer))
        self._altup = None if spec.altup is None else LayerAltUp(factory, spec.altup)
        self._scale = None if spec.scale is None else float(factory.read(spec.scale))

    def __call__(
        self, hidden: Tensor, context: LayerContext, wanted: Tensor | None = None
    ) -> Tensor:
        """The residual stream after this layer, of all or of the wanted positions."""
        mixed = self.mix(hidden, context)
        if wanted is not None:
            hidden, mixed = hidden[wanted], [one[wanted] for one in mixed]
        self.finish(hidden, mixed)
        return hidden

    def mix(self, hidden: Tensor, context: LayerContext) -> list[Tensor]:
        """What each mixer computes of each position, without the last linears. Of several streams,
        mixers read the first as the layer predicts it."""
        x = self._input_norm(hidden if self._altup is None else self._altup.predict(hidden))
        return [mixer(x, context) for mixer in (*self.mixers, *self._after_mlp)]

    def finish(self, hidden: Tensor, mixed: list[Tensor]) -> None:
        """Add the last linears of what was mixed, and the MLP, to the residual stream."""
        count = len(self.mixers)
        if self._altup is None:
            self._add(hidden, mixed[:count])
        else:
            first = hidden[:, 0].clone()
            self._add(first, mixed[:count])
            self._altup.correct(hidden, first)
        add_all(hidden, self._after_mlp, mixed[count:])
        if self._scale is not None:
            hidden.mul_(self._scale)

    def _add(self, hidden: Tensor, mixed: list[Tensor]) -> None:
        if self._is_parallel:  # the MLP reads what the mixers have read
            self._add_mlp(hidden)
        add_all(hidden, self.mixers, mixed)
        if not self._is_parallel:
            self._add_mlp(hidden)

    def _add_mlp(self, hidden: Tensor) -> None:
        if self.mlp is not None:
            self.mlp.add_to(hidden)


def add_all(hidden: Tensor, mixers: list[Mixer], mixed: list[Tensor]) -> None:
    for mixer, one in zip(mixers, mixed, strict=True):
        mixer.add_to(hidden, one)


class TorchStack:
    """All layers in torch, the reference for other implementations.

    After the attention of the last layer, only wanted positions are computed.
    """

    def __init__(self, factory: LayerFactory[Linear], spec: DecoderSpec) -> None:
        layers, self._dtype = spec.layers, factory.dtype
        self._inputs = None if spec.inputs is None else TokenInputs(factory, spec.inputs)
        self._altup = None if spec.altup is None else AltUp(factory, spec.altup)
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
        hidden = self.begin(hidden)
        last = len(self.layers) - 1
        for number, layer in enumerate(self.layers):
            if batch.images is not None:
                batch.images.add_before(number, hidden)
            if inputs is not None:
                inputs.keep(number, hidden)
            hidden = layer(hidden, context, wanted if number == last else None)
        return self.end(hidden)

    def weight_parts(
        self, factory: LayerFactory[Linear], spec: DecoderSpec
    ) -> Iterator[WeightPart]:
        """The parts that have weights, to be built by a factory."""
        if (inputs := spec.inputs) is not None:
            yield WeightPart("inputs", self._inputs, lambda: TokenInputs(factory, inputs))
        if (altup := spec.altup) is not None:
            yield WeightPart("altup", self._altup, lambda: AltUp(factory, altup))
        for number, (layer, one) in enumerate(zip(self.layers, spec.layers, strict=True)):
            build = partial(DecoderLayer, factory, one, number)
            yield WeightPart(f"layers.{number}", layer, build)

    def begin(self, hidden: Tensor) -> Tensor:
        """What the first layer reads: the embeddings, or several streams."""
        return hidden if self._altup is None else self._altup.expand(hidden)

    def end(self, hidden: Tensor) -> Tensor:
        """The residual stream, of what the last layer returns."""
        return hidden if self._altup is None else self._altup.contract(hidden)

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
        given = () if self._inputs is None else self._given(self._inputs, hidden, batch)
        cells = kv.cells(batch.write_cell).unbind()
        return LayerContext(batch.position, rotations, kv, cells, attention, states, given)

    def _given(self, inputs: TokenInputs, hidden: Tensor, batch: Batch) -> tuple[Tensor, ...]:
        """What each layer reads of the tokens, [positions, width] each."""
        tokens = batch.tokens
        if batch.images is not None:
            tokens = tokens.index_fill(0, batch.images.at, inputs.image_token)
        return inputs(tokens, hidden).unbind(1)

    def _rotary_positions(self, rope: Rope, batch: Batch) -> Tensor:
        """Positions for the rotary embedding: [positions], or [positions, pairs]."""
        if rope not in self._axes or batch.coordinates is None:
            return batch.position
        return batch.coordinates[:, self._axes[rope]]
