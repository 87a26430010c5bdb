"""Short convolutions between gates."""

from torch import Tensor

from paceline.runner.layers.factory import LayerFactory
from paceline.runner.layers.linear import Linear
from paceline.runner.layers.mixers.convolution import CausalConvolution
from paceline.runner.layers.mixers.mixer import LayerContext
from paceline.runner.models.states.short_conv import ShortConvSpec


class ShortConv:
    """See `ShortConvSpec`."""

    def __init__(self, factory: LayerFactory[Linear], spec: ShortConvSpec, layer: int) -> None:
        self._layer = layer
        self._inputs = factory.linear(spec.inputs, spec.norm)
        self._convolution = CausalConvolution(factory, (spec.convolution,), spec.bias)
        self._output = factory.summed(spec.output)

    def __call__(self, x: Tensor, context: LayerContext) -> Tensor:
        rows = context.rows
        before, after, value = self._inputs(x).chunk(3, dim=1)
        (tails,) = rows.of(self._layer)
        return self._convolution(before * value, rows, tails).mul_(after)

    def add_to(self, hidden: Tensor, mixed: Tensor) -> None:
        self._output.add_to(hidden, mixed)
