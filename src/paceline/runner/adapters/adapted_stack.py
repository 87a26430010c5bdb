"""All layers of a decoder in torch, with adapters."""

from copy import copy

from torch import Tensor

from paceline.runner.adapters.rows import AdaptedLinear, AdaptedRows, StepAdapters
from paceline.runner.adapters.targets import Site
from paceline.runner.attention.backend import Prepared
from paceline.runner.batch import Batch
from paceline.runner.kv_store import KVStore
from paceline.runner.layers.decoder_layer import DecoderLayer
from paceline.runner.layers.layer_inputs import LayerInputs
from paceline.runner.layers.mlp import MLP
from paceline.runner.layers.stack import TorchStack


class AdaptedStack:
    """The layers of a stack, with the same weights in products that add those of adapters."""

    def __init__(self, stack: TorchStack) -> None:
        self._stack, self._rows = stack, AdaptedRows()
        self._layers = [self._adapted(one, layer) for layer, one in enumerate(stack.layers)]

    def _adapted(self, layer: DecoderLayer, number: int) -> DecoderLayer:
        found, rows = copy(layer), self._rows
        found.attention, found.mlp = copy(layer.attention), copy(layer.mlp)
        found.attention.qkv = AdaptedLinear(layer.attention.qkv, rows, Site(number, "qkv"))
        found.attention.output = AdaptedLinear(layer.attention.output, rows, Site(number, "output"))
        if isinstance(layer.mlp, MLP):
            assert isinstance(found.mlp, MLP)
            own = found.mlp.products = copy(layer.mlp.products)
            own.gate_up = AdaptedLinear(own.gate_up, rows, Site(number, "gate_up"))
            own.down = AdaptedLinear(own.down, rows, Site(number, "down"))
        return found

    def __call__(
        self,
        hidden: Tensor,
        batch: Batch,
        kv: KVStore,
        attention: Prepared,
        wanted: Tensor | None,
        adapters: StepAdapters,
        inputs: LayerInputs | None = None,
    ) -> Tensor:
        """The residual stream after all layers. The layers overwrite `hidden`."""
        context = self._stack.context(batch, kv, attention)
        self._rows.set(adapters)
        for number, layer in enumerate(self._layers):
            if inputs is not None:
                inputs.keep(number, hidden)
            if layer is not self._layers[-1]:
                layer(hidden, context)
        last = self._layers[-1]
        seen = last.attend(hidden, context)
        if wanted is not None:
            hidden, seen = hidden[wanted], seen[wanted]
            self._rows.narrow(wanted)
        last.finish(hidden, seen)
        self._rows.clear()
        return hidden
