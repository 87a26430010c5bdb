"""A mixture of experts: each position is computed by the few that its router chooses."""

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.runner.layers.factory import LayerFactory
from paceline.runner.layers.mlp import GatedProducts, clamped_gate, plain_gate
from paceline.runner.models.architecture import MixtureSpec


class Mixture:
    """Positions are sorted by expert, so that an expert computes all of its positions at once."""

    def __init__(self, factory: LayerFactory, spec: MixtureSpec) -> None:
        self._spec = spec
        self._input_norm = factory.unscaled_norm(spec.norm.floor)
        self.router = factory.router(spec.router, spec.norm)  # [experts, width]
        biases = spec.router.biases
        self._router_bias = factory.joined(biases) if biases else None  # [experts]
        self.output_norm = None  # no architecture has one here
        gate = plain_gate(spec.activation) if spec.clamp is None else clamped_gate(spec.clamp)
        self.experts = [
            GatedProducts(factory, one.gate_up, spec.norm, gate, factory.linear(one.down))
            for one in spec.experts
        ]
        self._summed = factory.sum_over_ranks()

    def add_to(self, hidden: Tensor) -> None:
        """Add the mixture of the residual stream to it."""
        x = self._input_norm(hidden)
        chosen, share = self._choose(x)
        total = torch.zeros_like(hidden)
        order = chosen.flatten().argsort(stable=True)  # [positions * chosen]
        counts = chosen.flatten().bincount(minlength=len(self.experts)).tolist()
        for expert, pairs in zip(self.experts, order.split(counts), strict=True):
            if len(pairs):
                position = pairs // self._spec.chosen
                found = expert.down(expert.gated(x[position]))
                total.index_add_(0, position, found.mul_(share.flatten()[pairs].unsqueeze(1)))
        hidden.add_(self._summed(total))

    def _choose(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Experts of every position and their shares, [positions, chosen] each."""
        scores = F.linear(x.float(), self.router, self._router_bias)  # [positions, experts]
        share, chosen = scores.softmax(dim=-1).topk(self._spec.chosen)
        if self._spec.shares_sum_to_one:
            share = share / share.sum(dim=-1, keepdim=True)
        return chosen, share.to(x.dtype)
