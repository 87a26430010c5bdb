"""MoE layers on a GPU."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.core.errors import ConfigError
from paceline.runner.cuda.experts.choice import ExpertChoice, ExpertRouter
from paceline.runner.cuda.experts.coded import DecodedExperts, GroupedCodes
from paceline.runner.cuda.experts.few import FewExperts
from paceline.runner.cuda.experts.fp4 import Fp4Experts
from paceline.runner.cuda.experts.grouped import Grouped, GroupedFp8
from paceline.runner.cuda.experts.humming import HummingExperts
from paceline.runner.cuda.experts.library import LibraryExperts
from paceline.runner.cuda.gemm.fixed_tiles import multiplied
from paceline.runner.cuda.gemm.linear_kernel import (
    ExpertGate,
    ExpertKernel,
    ExpertKernelChoice,
    ExpertWeights,
    Use,
)
from paceline.runner.cuda.kernels.layers import NormedSum, PlainActivation, activate
from paceline.runner.cuda.linears import CudaLinear, NormedLinear
from paceline.runner.layers.factory import LayerFactory
from paceline.runner.models.experts import MoESpec, SharedExpertSpec
from paceline.runner.models.linear_spec import LinearSpec, NormSpec
from paceline.runner.tensors import to_floats
from paceline.runner.weights.matrix import Matrix, PlainMatrix, stacked
from paceline.runner.weights.quantized_matrix import OrderedMatrix

log = logging.getLogger(__name__)

# In order: the first that accepts the experts and a number of rows computes them.
KERNELS: tuple[type[ExpertKernel], ...] = (
    HummingExperts,
    FewExperts,
    Fp4Experts,
    LibraryExperts,
    Grouped,
    GroupedFp8,
    DecodedExperts,
    GroupedCodes,
)
# Those for which a position has the same bits in any company.
INVARIANT = tuple(kind for kind in KERNELS if kind.is_invariant)


class CudaMoE:
    """The host waits for nothing: which expert computes what is known on the GPU alone."""

    def __init__(
        self, factory: LayerFactory[CudaLinear], spec: MoESpec, scale: float = 1.0
    ) -> None:
        """What is added to the residual stream has norms, or else the scale is 1: the factor of the
        residual stream afterwards."""
        biases = spec.router.biases
        bias = factory.joined(biases) if biases else None
        weight = factory.router(spec.router, spec.router_scale or spec.norm)
        correction = None if spec.correction is None else factory.read(spec.correction).flatten()
        router = ExpertRouter.of(weight, bias, spec.routing, correction, factory.dtype)
        self._router = replace(router, is_invariant=factory.is_invariant)
        self._shared = None
        if spec.shared is not None:
            self._shared = CudaSharedExpert(factory, spec.shared, spec)
        check_gate(spec)
        kinds = INVARIANT if factory.is_invariant else KERNELS
        kinds = kinds if spec.gated_experts else tuple(one for one in kinds if one is Grouped)
        self._experts = expert_kernels(expert_weights(factory, spec), kinds)
        self._floor, self._latent = spec.norm.floor, None
        if (latent := spec.latent) is not None:
            self._latent = factory.linear(latent.before, spec.norm), factory.linear(latent.after)
        self._norms, self._is_of_inputs = norms_behind(factory, spec, scale), spec.routing.of_inputs
        self._has_parts, self._summed = factory.group is not None, factory.sum_over_ranks()

    def kernels(self) -> dict[str, str]:
        shared = {} if self._shared is None else self._shared.kernels()
        return {"experts": str(self._experts), **shared}

    def add_to(self, hidden: Tensor, _adapters: Tensor | None = None) -> None:
        """Add the experts of the residual stream to it. Experts are not adapted."""
        x, choice = self._router.choose(hidden, self._floor)
        gated = None if self._shared is None else self._shared.gated(hidden, x)
        is_apart = self._has_parts or self._norms is not None
        total = torch.zeros_like(hidden) if is_apart else hidden
        if self._is_of_inputs:
            add_apart(self._experts.of(len(x)), total, x, choice)
        elif self._latent is None:
            self._experts.of(len(x)).add_to(total, x, choice)
        else:
            before, after = self._latent
            narrow = before(x)
            sums = torch.zeros_like(narrow)
            self._experts.of(len(x)).add_to(sums, narrow, choice)
            after.add_to(total, sums)
        if self._norms is not None:
            assert self._shared is not None and gated is not None
            self._norms.add_to(hidden, total, self._shared.down(gated))
            return
        if self._shared is not None and gated is not None:
            self._shared.down.add_to(total, gated)
        if self._has_parts:
            hidden.add_(self._summed(total))


def add_apart(kernel: ExpertKernel, total: Tensor, x: Tensor, choice: ExpertChoice) -> None:
    """Add experts whose inputs [positions, width] are multiplied by the shares, not their outputs.
    Each pair of a position and an expert has a row."""
    share = choice.share
    rows = (x.unsqueeze(1) * share.unsqueeze(2).to(x.dtype)).flatten(0, 1)
    apart = replace(choice, share=torch.ones_like(share).view(-1, 1))
    if share.shape[1] == 1:
        kernel.add_to(total, rows, apart)
        return
    found = torch.zeros_like(rows)
    kernel.add_to(found, rows, apart)
    total.add_(found.view(*share.shape, -1).sum(1))


def norms_behind(
    factory: LayerFactory[CudaLinear], spec: MoESpec, scale: float
) -> NormedSum | None:
    """The norms of experts, of the shared expert, and of their sum, if there are some."""
    if spec.experts_norm is None:
        return None
    shared, both = spec.shared, spec.output_norm
    assert shared is not None and shared.output_norm is not None and both is not None

    def numbers(norm: NormSpec) -> tuple[Tensor, float]:
        return factory.factor(norm), norm.floor

    return NormedSum(numbers(spec.experts_norm), numbers(shared.output_norm), numbers(both), scale)


def check_gate(spec: MoESpec) -> None:
    """ConfigError if no kernel computes what experts do without a gate."""
    if not spec.gated_experts and spec.activation != "relu2":
        raise ConfigError(
            f"experts without gates have the activation {spec.activation!r}; on a GPU only 'relu2' "
            "is computed: use device 'cpu'"
        )


class CudaSharedExpert:
    """The expert of every position."""

    def __init__(
        self,
        factory: LayerFactory[CudaLinear],
        spec: SharedExpertSpec,
        experts: MoESpec,
    ) -> None:
        norm, self._is_gated = spec.norm or experts.norm, experts.gated_experts
        linear = factory.linear(spec.gate_up, norm)
        self._gate_up = NormedLinear(linear, norm, is_gated=self._is_gated)
        self.down = factory.linear(spec.down)
        self._gate = None if spec.gate is None else factory.router(spec.gate, norm)  # [1, width]
        self._activation = PlainActivation(experts.activation)
        self._multiply = multiplied if factory.is_invariant else F.linear

    def kernels(self) -> dict[str, str]:
        down = self.down.choice(Use.ADDED)
        return {"shared gate_up": str(self._gate_up), "shared down": str(down)}

    def gated(self, hidden: Tensor, x: Tensor) -> Tensor:
        """The input of `down`, from the residual stream and its normalised rows."""
        if self._is_gated:
            found = self._gate_up.gated(hidden, self._activation.kind == "silu")
        else:
            found, late = self._gate_up(hidden)
            found = activate(found, self._activation, late)
        if self._gate is not None:
            found.mul_(self._multiply(x.float(), self._gate).sigmoid_())
        return found


def expert_kernels(
    weights: ExpertWeights, kinds: Sequence[type[ExpertKernel]] = KERNELS
) -> ExpertKernelChoice:
    """The kernels that accept the weights. If none takes many rows, they are decoded."""
    found = ExpertKernelChoice(weights, kinds)
    if found.is_complete:
        return found
    form = weights.gate_up.form
    assert not isinstance(weights.gate_up, PlainMatrix), f"no kernel for experts in {form}"
    log.warning("no kernel computes experts in %s: they are decoded to %s", form, weights.dtype)
    return expert_kernels(weights.decoded(), kinds)


def expert_weights(factory: LayerFactory[CudaLinear], spec: MoESpec) -> ExpertWeights:
    """The weights of all experts, one of which is read at a time."""

    def weights(
        linears: list[LinearSpec], factor: Tensor | None, scales: Sequence[float] = ()
    ) -> tuple[Matrix, Tensor | None]:
        left: list[Tensor | None] = []

        def read() -> Iterator[Matrix]:
            for linear, scale in zip_longest(linears, scales):
                matrix = factory.matrix(linear)
                if scale is not None:
                    matrix = matrix.scaled(scale)
                if isinstance(matrix, OrderedMatrix):  # each expert has an order of its own
                    matrix = PlainMatrix(matrix.dense())
                matrix, rest = matrix.folded(factor, factory.dtype)
                left.append(rest)
                yield matrix

        return stacked(len(linears), read()), left[0]

    def biases(linears: list[LinearSpec]) -> Tensor | None:
        if not linears[0].biases:
            return None
        return torch.stack([factory.joined(linear.biases) for linear in linears])

    gate_up, down = [one.gate_up for one in spec.experts], [one.down for one in spec.experts]
    factor = factory.factor(spec.norm) if spec.latent is None else None
    first, rest = weights(gate_up, factor)
    scales = () if spec.expert_scales is None else to_floats(factory.read(spec.expert_scales))
    second, _ = weights(down, None, scales)
    gate = ExpertGate(spec.activation == "silu", spec.clamp, spec.gated_experts)
    return ExpertWeights(first, second, biases(gate_up), biases(down), rest, gate, factory.dtype)
