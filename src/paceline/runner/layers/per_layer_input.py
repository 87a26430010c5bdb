"""Inputs that each layer reads of the tokens, beside the residual stream."""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from paceline.runner.layers.factory import LayerFactory
from paceline.runner.layers.linear import Linear
from paceline.runner.layers.mixers.mixer import LayerContext
from paceline.runner.layers.mlp import ACTIVATIONS
from paceline.runner.layers.norm import add_linear
from paceline.runner.models.architecture import PerLayerInputs, PerLayerSpec


class TokenInputs:
    """The inputs of all layers."""

    def __init__(
        self,
        factory: LayerFactory[Linear],
        spec: PerLayerInputs,
        norm: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        """With the norm of a device, [n, width] to [n, width]; by default it is torch's."""
        self._width, self._scale = spec.norm.width, spec.scale
        self.image_token = spec.image_token
        self._table = factory.read(spec.embedding).to(factory.dtype)  # [vocab, layers * width]
        self._linear, self._norm = factory.linear(spec.linear), norm or factory.norm(spec.norm)

    def __call__(self, tokens: Tensor, hidden: Tensor) -> Tensor:
        """The inputs [positions, layers, width]; `hidden` is the residual stream where it begins,
        [positions, width]."""
        found = self._norm(self._linear(hidden).view(-1, self._width))
        found = found.view(len(tokens), -1, self._width)
        # On a GPU, images have ids behind those of all tokens.
        known = tokens.where(tokens < len(self._table), self.image_token)
        embedded = F.embedding(known, self._table).view_as(found)
        return found.add_(embedded, alpha=self._scale).mul_(0.5**0.5)


class PerLayerInput:
    """Adds the input of one layer to the residual stream, after the MLP."""

    def __init__(self, factory: LayerFactory[Linear], spec: PerLayerSpec, layer: int) -> None:
        self._layer = layer
        self._gate, self._activation = factory.linear(spec.gate), ACTIVATIONS[spec.activation]
        self._output, self._norm = factory.linear(spec.output), factory.norm(spec.norm)
        self._first = None  # [width]; factor of the first of several streams
        if spec.scale is not None:
            self._first = factory.read(spec.scale).to(factory.dtype)

    def __call__(self, x: Tensor, context: LayerContext) -> Tensor:
        return context.inputs[self._layer]

    def add_to(self, hidden: Tensor, mixed: Tensor) -> None:
        """`mixed` is the input of this layer, [positions, width]."""
        if self._first is None:
            add_linear(hidden, self._gated(hidden, mixed), self._output, self._norm)
        else:
            x = self._gated(hidden[:, 0] * self._first, mixed)
            hidden[:, 1:].add_(self._norm(self._output(x)).unsqueeze(1))

    def _gated(self, x: Tensor, mixed: Tensor) -> Tensor:
        return self._activation(self._gate(x)).mul_(mixed)
