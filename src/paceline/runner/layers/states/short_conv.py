"""Short convolutions between gates."""

from torch import Tensor

from paceline.runner.layers.factory import LayerFactory
from paceline.runner.layers.linear import Linear
from paceline.runner.layers.states.convolution import CausalConvolution
from paceline.runner.models.states.short_conv import ShortConvSpec
from paceline.runner.state_store import StateRows


class ShortConv:
    """See `ShortConvSpec`."""

    def __init__(self, factory: LayerFactory[Linear], spec: ShortConvSpec, layer: int) -> None:
        self._layer = layer
        self._inputs = factory.linear(spec.inputs, spec.norm)
        self._convolution = CausalConvolution(factory, spec.convolution, spec.bias)
        self.output = factory.summed(spec.output)

    def __call__(self, x: Tensor, rows: StateRows) -> Tensor:
        before, after, value = self._inputs(x).chunk(3, dim=1)
        (tails,) = rows.of(self._layer)
        return self._convolution(before * value, rows, tails).mul_(after)
