"""A mixture of experts on a GPU: products of all experts in one kernel each."""

import torch
from torch import Tensor

from paceline.runner.cuda.kernels.experts import (
    choose_experts,
    gated_by_experts,
    summed_by_experts,
)
from paceline.runner.cuda.kernels.layers import normalized
from paceline.runner.layers.factory import LayerFactory
from paceline.runner.models.architecture import MixtureSpec, NormSpec, ProductSpec


class CudaMixture:
    """The host waits for nothing: which expert computes what is known on the GPU alone."""

    def __init__(self, factory: LayerFactory, spec: MixtureSpec) -> None:
        self._spec, self._floor = spec, spec.norm.floor
        self._is_silu = spec.activation == "silu"
        self._router = factory.router(spec.router, spec.norm).t().contiguous()  # [width, experts]
        biases = spec.router.biases
        self._router_bias = factory.joined(biases) if biases else None  # [experts]
        self._gate_up = _stacked(factory, [one.gate_up for one in spec.experts], spec.norm)
        self._down = _stacked(factory, [one.down for one in spec.experts])
        self._gate_up_bias = _biases(factory, [one.gate_up for one in spec.experts])
        self._down_bias = _biases(factory, [one.down for one in spec.experts])
        self._has_parts, self._summed = factory.group is not None, factory.sum_over_ranks()
        self._every = torch.arange(
            len(spec.experts) + 1, dtype=torch.int32, device=self._router.device
        )

    def add_to(self, hidden: Tensor, _places: Tensor | None = None) -> None:
        """Add the mixture of the residual stream to it. Experts are not adapted."""
        x, spec = normalized(hidden, self._floor), self._spec
        scores = x.float() @ self._router
        if self._router_bias is not None:
            scores += self._router_bias
        choice = choose_experts(scores, spec.chosen, spec.shares_sum_to_one, self._every)
        gate_up = self._gate_up, choice, self._is_silu, self._gate_up_bias, spec.clamp
        inner = gated_by_experts(x, *gate_up)
        total = torch.zeros_like(hidden) if self._has_parts else hidden
        summed_by_experts(total, inner, self._down, choice, self._down_bias)
        if self._has_parts:
            hidden.add_(self._summed(total))


def _stacked(
    factory: LayerFactory, products: list[ProductSpec], before: NormSpec | None = None
) -> Tensor:
    """The weights of several products, [products, outputs, inputs]."""
    shape = len(products), products[0].outputs, products[0].inputs
    found = torch.empty(shape, dtype=factory.dtype, device=factory.device)
    factor = None if before is None else factory.factor(before)  # [inputs]
    for at, product in enumerate(products):
        weight = factory.joined(product.weights)
        found[at] = weight if factor is None else weight * factor
    return found


def _biases(factory: LayerFactory, products: list[ProductSpec]) -> Tensor | None:
    """The biases of several products, [products, outputs] in float32; None if they have none."""
    if not products[0].biases:
        return None
    return torch.stack([factory.joined(product.biases) for product in products])
