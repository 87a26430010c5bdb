"""All layers of a decoder in torch, with adapters."""

from collections.abc import Mapping
from copy import copy

import torch
from torch import Tensor

from paceline.runner.adapters.targets import Site
from paceline.runner.adapters.weights import AdapterWeights
from paceline.runner.attention_backend import Prepared
from paceline.runner.batch import Batch
from paceline.runner.kv_store import KVStore
from paceline.runner.layers.decoder_layer import DecoderLayer, TorchStack
from paceline.runner.layers.linear import Linear
from paceline.runner.layers.mixers.self_attention import SelfAttention
from paceline.runner.layers.mlp import MLP
from paceline.runner.layers.norm import LayerInputs
from paceline.runner.parallel.group import SummedLinear


class AdaptedRows:
    """Positions grouped by adapter, so that each adapter has one GEMM for all of its rows.

    It is set before the linears of a step, and again when later layers compute fewer positions.
    """

    def __init__(self, adapters: Mapping[int, AdapterWeights]) -> None:
        """`adapters` has the weights by index."""
        self._adapters = adapters
        self._groups: list[tuple[AdapterWeights, Tensor]] = []

    def set(self, indices: Tensor) -> None:
        """The index of the adapter of each position, [positions]."""
        rows = [
            (weights, (indices == index).nonzero()[:, 0])
            for index, weights in self._adapters.items()
        ]
        self._groups = [(weights, index) for weights, index in rows if len(index)]

    def add(self, out: Tensor, x: Tensor, site: Site) -> None:
        """Add the adapters' outputs for a linear of x."""
        for weights, index in self._groups:
            parts = weights.sites.get(site)
            if parts is None:
                continue
            inputs = x[index]
            for part in parts:
                found = torch.mm(torch.mm(inputs, part.a), part.b)
                out[:, part.first : part.end].index_add_(0, index, found)


def adapted(linear: Linear, rows: AdaptedRows, site: Site) -> Linear:
    """A linear with adapters. Where ranks sum a linear, they sum its adapters with it."""
    if isinstance(linear, SummedLinear):
        return linear.around(AdaptedLinear(linear.part, rows, site))
    return AdaptedLinear(linear, rows, site)


class AdaptedLinear:
    """A linear of the model plus the adapters of its rows."""

    def __init__(self, linear: Linear, rows: AdaptedRows, site: Site) -> None:
        self._linear, self._rows, self._site = linear, rows, site

    def __call__(self, x: Tensor) -> Tensor:
        out = self._linear(x)
        self._rows.add(out, x, self._site)
        return out

    def add_to(self, total: Tensor, x: Tensor) -> None:
        self._linear.add_to(total, x)
        self._rows.add(total, x, self._site)


class AdaptedStack:
    """The layers of a stack, whose linears add those of adapters. The weights are shared."""

    def __init__(self, stack: TorchStack, adapters: Mapping[int, AdapterWeights]) -> None:
        """`adapters` has the weights by index."""
        self.stack, self._rows = stack, AdaptedRows(adapters)
        self._layers = [self._adapted(one, layer) for layer, one in enumerate(stack.layers)]

    def _adapted(self, layer: DecoderLayer, number: int) -> DecoderLayer:
        found, rows = copy(layer), self._rows
        found.mixers, found.mlp = [copy(one) for one in layer.mixers], copy(layer.mlp)
        for mixer in found.mixers:
            if isinstance(mixer, SelfAttention):
                mixer.qkv = adapted(mixer.qkv, rows, Site(number, "qkv"))
                mixer.output = adapted(mixer.output, rows, Site(number, "output"))
        if isinstance(layer.mlp, MLP):
            assert isinstance(found.mlp, MLP)
            linears = found.mlp.linears = copy(layer.mlp.linears)
            linears.gate_up = adapted(linears.gate_up, rows, Site(number, "gate_up"))
            linears.down = adapted(linears.down, rows, Site(number, "down"))
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
        context, indices = self.stack.context(hidden, batch, kv, attention), batch.adapters
        assert indices is not None, "a step without adapters"
        self._rows.set(indices)
        hidden = self.stack.begin(hidden)
        for number, layer in enumerate(self._layers):
            if batch.images is not None:
                batch.images.add_before(number, hidden)
            if inputs is not None:
                inputs.keep(number, hidden)
            mixed = layer.mix(hidden, context)
            if wanted is not None and layer is self._layers[-1]:
                hidden, mixed = hidden[wanted], [one[wanted] for one in mixed]
                self._rows.set(indices[wanted])
            layer.finish(hidden, mixed)
        return self.stack.end(hidden)
