"""All layers of a decoder in torch, with adapters."""

from collections.abc import Mapping
from copy import copy

from torch import Tensor

from paceline.runner.adapters.rows import AdaptedRows, adapted
from paceline.runner.adapters.targets import Site
from paceline.runner.adapters.weights import AdapterWeights
from paceline.runner.attention.backend import Prepared
from paceline.runner.batch import Batch
from paceline.runner.kv_store import KVStore
from paceline.runner.layers.decoder_layer import DecoderLayer
from paceline.runner.layers.layer_inputs import LayerInputs
from paceline.runner.layers.mlp import MLP
from paceline.runner.layers.stack import TorchStack


class AdaptedStack:
    """The layers of a stack, with the same weights in products that add those of adapters."""

    def __init__(self, stack: TorchStack, adapters: Mapping[int, AdapterWeights]) -> None:
        """`adapters` has the weights by place."""
        self._stack, self._rows = stack, AdaptedRows(adapters)
        self._layers = [self._adapted(one, layer) for layer, one in enumerate(stack.layers)]

    def _adapted(self, layer: DecoderLayer, number: int) -> DecoderLayer:
        found, rows = copy(layer), self._rows
        found.attention, found.mlp = copy(layer.attention), copy(layer.mlp)
        found.attention.qkv = adapted(layer.attention.qkv, rows, Site(number, "qkv"))
        found.attention.output = adapted(layer.attention.output, rows, Site(number, "output"))
        if isinstance(layer.mlp, MLP):
            assert isinstance(found.mlp, MLP)
            own = found.mlp.products = copy(layer.mlp.products)
            own.gate_up = adapted(own.gate_up, rows, Site(number, "gate_up"))
            own.down = adapted(own.down, rows, Site(number, "down"))
        return found

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
        context, places = self._stack.context(batch, kv, attention), batch.adapters
        assert places is not None, "a step without adapters"
        self._rows.set(places)
        for number, layer in enumerate(self._layers):
            if inputs is not None:
                inputs.keep(number, hidden)
            seen = layer.attend(hidden, context)
            if wanted is not None and layer is self._layers[-1]:
                hidden, seen = hidden[wanted], seen[wanted]
                self._rows.set(places[wanted])
            layer.finish(hidden, seen)
        return hidden
