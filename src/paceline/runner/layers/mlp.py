"""MLPs, with and without a gate, and mixture of experts (MoE)."""

from collections.abc import Callable
from functools import partial
from math import exp, log1p
from statistics import NormalDist

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.runner.layers.factory import LayerFactory
from paceline.runner.layers.linear import Linear
from paceline.runner.layers.norm import add_linear
from paceline.runner.models.architecture import XIELU, MLPSpec
from paceline.runner.models.experts import (
    ClampedGate,
    ExpertGroups,
    ExpertScores,
    MoESpec,
    Routing,
    SharedExpertSpec,
)
from paceline.runner.models.linear_spec import Activation, LinearSpec, NormSpec
from paceline.runner.tensors import split, to_ints

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "relu2": lambda x: F.relu(x).square_(),
}


# From what `gate_up` computes, [positions, 2 * width] or [positions, width], to what `down` reads.
Inner = Callable[[Tensor], Tensor]


def plain_gate(activation: Activation, sparsity: float = 0.0) -> Inner:
    """activation(gate) * up"""
    deviations = NormalDist().inv_cdf(sparsity) if sparsity else 0.0

    def apply(gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        if sparsity:
            least = gate.mean(-1, keepdim=True)
            least.add_(gate.std(-1, correction=0, keepdim=True), alpha=deviations)
            gate = F.relu(gate - least)
        return ACTIVATIONS[activation](gate).mul_(up)

    return apply


def plain(activation: Activation, gated: bool, sparsity: float = 0.0) -> Inner:
    return plain_gate(activation, sparsity) if gated else ACTIVATIONS[activation]


def clamped_gate(clamp: ClampedGate) -> Inner:
    def apply(gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        gate, up = gate.clamp(max=clamp.limit), up.clamp(-clamp.limit, clamp.limit)
        return (gate * clamp.alpha).sigmoid_().mul_(gate).mul_(up.add_(1.0))

    return apply


def xielu(factory: LayerFactory[Linear], spec: XIELU) -> Inner:
    """Quadratic above zero and exponential below, plus a linear part."""
    above, below, beta, eps = xielu_numbers(factory, spec)

    def apply(x: Tensor) -> Tensor:
        negative = x.clamp(max=eps).expm1_().sub_(x).mul_(below)
        return torch.where(x > 0, (x * x).mul_(above), negative).add_(x, alpha=beta)

    return apply


def xielu_numbers(factory: LayerFactory[Linear], spec: XIELU) -> tuple[float, float, float, float]:
    """The factors above and below zero, that of the linear part, and where the exponential ends."""
    up, down, beta, eps = (
        float(factory.read(one)) for one in (spec.up, spec.down, spec.beta, spec.eps)
    )
    return softplus(up), beta + softplus(down), beta, eps


def softplus(x: float) -> float:
    return log1p(exp(x))


def inner_of(factory: LayerFactory[Linear], spec: MLPSpec) -> Inner:
    if spec.xielu is not None:
        return xielu(factory, spec.xielu)
    return plain(spec.activation, spec.gated, spec.sparsity)


class GatedLinears:
    """The two linears of an MLP or an expert, and the gate or activation between them."""

    def __init__(
        self,
        factory: LayerFactory[Linear],
        gate_up: LinearSpec,
        norm: NormSpec | None,
        inner: Inner,
        down: Linear,
    ) -> None:
        self.gate_up = factory.linear(gate_up, norm)
        self._inner = inner
        self.down = down

    def gated(self, x: Tensor) -> Tensor:
        """The input of `down`."""
        return self._inner(self.gate_up(x))


class MLP:
    def __init__(self, factory: LayerFactory[Linear], spec: MLPSpec) -> None:
        self._input_norm = factory.input_norm(spec.norm)
        inner, down = inner_of(factory, spec), factory.summed(spec.down)
        self.linears = GatedLinears(factory, spec.gate_up, spec.norm, inner, down)
        self.output_norm = factory.optional_norm(spec.output_norm)

    def add_to(self, hidden: Tensor) -> None:
        """Add the MLP's output to the residual stream."""
        x = self.linears.gated(self._input_norm(hidden))
        add_linear(hidden, x, self.linears.down, self.output_norm)


SCORES: dict[ExpertScores, Callable[[Tensor], Tensor]] = {
    "softmax": partial(torch.softmax, dim=-1),
    "sigmoid": torch.sigmoid,
}


def choose_experts(
    outputs: Tensor, routing: Routing, correction: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Experts of each position and their shares, [positions, chosen] each, from the outputs of a
    router [positions, experts]."""
    scores = SCORES[routing.scores](outputs)
    ranked = scores if correction is None else scores + correction
    if routing.groups is not None:
        ranked = of_best_groups(ranked, routing.groups)
    chosen = ranked.topk(routing.chosen).indices
    share = scores.gather(1, chosen)
    if routing.shares_sum_to_one:
        share = share / share.sum(dim=-1, keepdim=True)
    return chosen, share.mul_(routing.scale)


def of_best_groups(scores: Tensor, groups: ExpertGroups) -> Tensor:
    """Scores [positions, experts], with -inf for experts whose group is not chosen."""
    positions, experts = scores.shape
    grouped = scores.view(positions, groups.count, experts // groups.count)
    best = grouped.topk(groups.judges).values.sum(dim=-1).topk(groups.chosen).indices
    is_left_out = torch.ones(grouped.shape[:2], dtype=torch.bool, device=scores.device)
    is_left_out.scatter_(1, best, value=False)
    return grouped.masked_fill(is_left_out.unsqueeze(-1), float("-inf")).flatten(1)


class SharedExpert:
    """The expert of every position."""

    def __init__(
        self,
        factory: LayerFactory[Linear],
        spec: SharedExpertSpec,
        norm: NormSpec,
        inner: Inner,
    ) -> None:
        norm = spec.norm or norm
        self._linears = GatedLinears(factory, spec.gate_up, norm, inner, factory.linear(spec.down))
        self._output_norm = factory.optional_norm(spec.output_norm)
        self._gate = None if spec.gate is None else factory.router(spec.gate, norm)  # [1, width]

    def __call__(self, x: Tensor) -> Tensor:
        found = self._linears.down(self._linears.gated(x))
        if self._gate is not None:
            found.mul_(F.linear(x.float(), self._gate).sigmoid_())
        return found if self._output_norm is None else self._output_norm(found)


class MoE:
    """An MoE layer. It sorts positions by expert, so that each expert computes all at once."""

    def __init__(self, factory: LayerFactory[Linear], spec: MoESpec) -> None:
        self._routing = spec.routing
        self._input_norm = factory.unscaled_norm(spec.norm)
        self.router = factory.router(spec.router, spec.router_scale or spec.norm)
        biases, correction, scales = spec.router.biases, spec.correction, spec.expert_scales
        self._router_bias = factory.joined(biases) if biases else None  # [experts]
        self._correction = None if correction is None else factory.read(correction).flatten()
        self._scales = None if scales is None else factory.read(scales)  # [experts]
        inner = of_shared = plain(spec.activation, spec.gated_experts)
        if spec.clamp is not None:
            inner = clamped_gate(spec.clamp)
        self._latent = None
        if (latent := spec.latent) is not None:
            self._latent = factory.linear(latent.before, spec.norm), factory.linear(latent.after)
        norm = spec.norm if latent is None else None
        self.experts = [
            GatedLinears(factory, one.gate_up, norm, inner, factory.linear(one.down))
            for one in spec.experts
        ]
        self._shared = None
        if spec.shared is not None:
            self._shared = SharedExpert(factory, spec.shared, spec.norm, of_shared)
        self._experts_norm = factory.optional_norm(spec.experts_norm)
        self.output_norm = factory.optional_norm(spec.output_norm)
        self._summed = factory.sum_over_ranks()

    def add_to(self, hidden: Tensor) -> None:
        """Add the experts' output to the residual stream."""
        x = self._input_norm(hidden)
        # In float32, since rounding may change the choice.
        outputs = F.linear(x.float(), self.router, self._router_bias)
        chosen, share = choose_experts(outputs, self._routing, self._correction)
        if self._scales is not None:
            share = share * self._scales[chosen]
        total = self._routed(x, chosen, share.to(x.dtype))
        if self._experts_norm is not None:
            total = self._experts_norm(self._summed(total))
        if self._shared is not None:
            total.add_(self._shared(x))
        if self._experts_norm is None:
            total = self._summed(total)
        hidden.add_(total if self.output_norm is None else self.output_norm(total))

    def _routed(self, x: Tensor, chosen: Tensor, share: Tensor) -> Tensor:
        """The sum of the chosen experts of this rank."""
        if self._latent is None:
            return self._sum(x, chosen, share)
        before, after = self._latent
        return after(self._sum(before(x), chosen, share))

    def _sum(self, x: Tensor, chosen: Tensor, share: Tensor) -> Tensor:
        total = torch.zeros_like(x)
        order = chosen.flatten().argsort(stable=True)  # [positions * chosen]
        counts = to_ints(chosen.flatten().bincount(minlength=len(self.experts)))
        for expert, pairs in zip(self.experts, split(order, counts), strict=True):
            if len(pairs):
                position = pairs // self._routing.chosen
                read, factor = x[position], share.flatten()[pairs].unsqueeze(1)
                if self._routing.of_inputs:
                    found = expert.down(expert.gated(read.mul_(factor)))
                else:
                    found = expert.down(expert.gated(read)).mul_(factor)
                total.index_add_(0, position, found)
        return total
