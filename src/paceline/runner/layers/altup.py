"""Several residual streams (AltUp) in torch, and LAuReL."""

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.runner.layers.factory import LayerFactory
from paceline.runner.layers.linear import Linear
from paceline.runner.layers.mixers.mixer import LayerContext
from paceline.runner.models.architecture import AltUpSpec, LaurelSpec, LayerAltUpSpec

LEAST = 1e-5**0.5  # length of a stream, for a root mean square


class AltUp:
    """Streams of a decoder, [positions, streams, width]."""

    def __init__(self, factory: LayerFactory[Linear], spec: AltUpSpec) -> None:
        self._expand, self._contract = (
            [factory.linear(one) for one in linears] for linears in (spec.expand, spec.contract)
        )

    def expand(self, hidden: Tensor) -> Tensor:
        """Streams, from the embeddings [positions, width]."""
        others = (as_long_as(hidden, linear(hidden)) for linear in self._expand)
        return torch.stack((hidden, *others), dim=1)

    def contract(self, streams: Tensor) -> Tensor:
        """The residual stream before the last norm, [positions, width]."""
        first, *others = streams.unbind(1)
        found = (
            as_long_as(first, linear(one))
            for linear, one in zip(self._contract, others, strict=True)
        )
        return torch.stack((first, *found)).mean(dim=0)


def as_long_as(first: Tensor, other: Tensor) -> Tensor:
    """The other one with the length of the first."""
    wanted, found = (one.square().mean(dim=-1, keepdim=True).sqrt_() for one in (first, other))
    return other * (wanted / found.clamp_(min=LEAST))


class LayerAltUp:
    """Predicts and corrects the streams of a layer. Routing stays in float32."""

    def __init__(self, factory: LayerFactory[Linear], spec: LayerAltUpSpec) -> None:
        self._norm = factory.unscaled_norm(spec.norm)
        self._router = factory.router(spec.router, spec.norm) / spec.norm.width  # [streams, width]
        self._predict = factory.read(spec.predict)  # [streams * streams, streams]
        self._correct = factory.read(spec.correct)  # [streams, streams]

    def predict(self, streams: Tensor) -> Tensor:
        """Predict all streams, in place. Returns a copy of the first, [positions, width]."""
        shares = F.linear(self._routed(streams[:, 0]), self._predict)
        shares = shares.view(-1, *self._correct.shape).to(streams.dtype)
        streams.add_(torch.bmm(shares, streams))
        return streams[:, 0].clone()

    def correct(self, streams: Tensor, first: Tensor) -> None:
        """Correct all streams, in place, by what the layer has computed of the first."""
        shares = F.linear(self._routed(first), self._correct).add_(1.0).to(streams.dtype)
        change = first - streams[:, 0]
        streams.add_(shares.unsqueeze(2) * change.unsqueeze(1))

    def _routed(self, x: Tensor) -> Tensor:
        return F.linear(self._norm(x).float(), self._router).tanh_()


class Laurel:
    """Adds linears of low rank to the residual stream, behind attention."""

    def __init__(self, factory: LayerFactory[Linear], spec: LaurelSpec, layer: int) -> None:
        self._factor = factory.factor(spec.norm).to(factory.dtype)
        self._down, self._up = factory.linear(spec.down, spec.norm), factory.linear(spec.up)
        self._norm = factory.norm(spec.output_norm)

    def __call__(self, x: Tensor, context: LayerContext) -> Tensor:
        return self._norm(self._up(self._down(x))).add_(x * self._factor)

    def add_to(self, hidden: Tensor, mixed: Tensor) -> None:
        hidden.add_(mixed).mul_(0.5**0.5)
