"""The input that a layer on a GPU reads of the tokens, beside the residual stream."""

from torch import Tensor

from paceline.runner.cuda.kernels.layers import DeferredNorm, PlainActivation, activate
from paceline.runner.cuda.linears import CudaLinear, residual_linear
from paceline.runner.cuda.mixers.mixer import CudaLayerContext, CudaMixer
from paceline.runner.layers.factory import LayerFactory
from paceline.runner.models.architecture import PerLayerSpec


class CudaPerLayerInput(CudaMixer):
    """Adds the input of one layer to the residual stream, which has the scale afterwards."""

    def __init__(
        self, factory: LayerFactory[CudaLinear], spec: PerLayerSpec, layer: int, scale: float
    ) -> None:
        self._layer, self._gate = layer, factory.linear(spec.gate)
        self._activation = PlainActivation(spec.activation)
        self._output = residual_linear(factory, spec.output, spec.norm, scale=scale)

    def kernels(self) -> dict[str, str]:
        return {"input": str(self._output)}

    def __call__(self, hidden: Tensor, step: CudaLayerContext) -> Tensor:
        return step.inputs[self._layer]

    def add_to(self, hidden: Tensor, mixed: Tensor, adapters: Tensor | None) -> None:
        """`mixed` is the input of this layer, [positions, width]."""
        found = self._gate(hidden)
        found = activate(found, self._activation, DeferredNorm(found, 0.0, 0)).mul_(mixed)
        self._output(hidden, found)
