"""The adapters of resident sequences on a GPU."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Protocol

import torch
from torch import Tensor

from paceline.core.arrays import Index
from paceline.core.plan import Plan
from paceline.runner.adapters.host import NO_ADAPTER, AdapterTable, HostAdapters
from paceline.runner.adapters.targets import AdapterTargets, LinearName, Site
from paceline.runner.adapters.weights import AdapterWeights, PartWeights
from paceline.runner.cuda.gemm.fixed_tiles import multiplied
from paceline.runner.cuda.gemm.library import Library
from paceline.runner.cuda.gemm.linear_kernel import KernelChoice, LinearWeights, Use
from paceline.runner.cuda.gemm.split_k import SplitK
from paceline.runner.cuda.kernels.adapters import AdapterLayout, add_adapted, gate_adapted
from paceline.runner.cuda.kernels.layers import DeferredNorm, gated
from paceline.runner.cuda.staging import Staging
from paceline.runner.tensors import split
from paceline.runner.weights.matrix import PlainMatrix

RANK_STEP = 16  # the least that tensor cores sum over


class ModelLinear(Protocol):
    """A linear of the model."""

    @property
    def weights(self) -> LinearWeights: ...

    @property
    def is_invariant(self) -> bool:
        """Have rows the same bits in any company?"""
        ...

    def choice(self, use: Use) -> KernelChoice:
        """The kernels for a use, by rows."""
        ...


class FirstFactors(ABC):
    """A linear of the model and the first factors of all adapters:

        columns | of the model | part 0: index 0, index 1 ... | part 1: index 0, index 1 ... |

    a   [columns of all adapters, inputs]
    """

    a: Tensor

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor:
        """[n, inputs] to [n, columns]."""

    def parts(self, x: Tensor) -> Tensor:
        """The same, or parts of the sum [splits, n, columns]."""
        return self(x)


class JoinedFactors(FirstFactors):
    """One matrix has both, and one GEMM computes them. Steps without adapters use the lines of the
    model alone, which lie where they would lie otherwise."""

    def __init__(self, weights: LinearWeights, weight: Tensor, layout: AdapterLayout) -> None:
        """The weights move into the matrix."""
        outputs, inputs = weight.shape
        lines = weight.new_zeros((layout.columns, inputs))
        lines[:outputs] = weight
        weights.matrix = PlainMatrix(lines[:outputs])
        wide = replace(weights, matrix=PlainMatrix(lines))
        if weights.bias is not None:
            wide.bias = weights.bias.new_zeros(layout.columns)
            wide.bias[:outputs] = weights.bias
        self.a, self.wide, self._library = lines[outputs:], wide, Library(wide, lines)
        self._split = SplitK.of(wide, Use.ADDED) if wide.bias is None else None

    def __call__(self, x: Tensor) -> Tensor:
        return self._library.plain(x)

    def parts(self, x: Tensor) -> Tensor:
        if self._split is not None and len(x) <= self._split.most_rows:
            return self._split.parts(x)
        return self(x)


class FixedFactors(FirstFactors):
    """One matrix has both, and an invariant kernel computes them. Results are in float32, so rows
    without an adapter are rounded once, as in steps without adapters."""

    def __init__(self, weights: LinearWeights, weight: Tensor, layout: AdapterLayout) -> None:
        joined = JoinedFactors(weights, weight, layout)
        self.a, self._wide = joined.a, joined.wide

    def __call__(self, x: Tensor) -> Tensor:
        assert self._wide.plain is not None
        return multiplied(x, self._wide.plain, self._wide.bias, dtype=torch.float32)


class SeparateFactors(FirstFactors):
    """The model's linear is quantized, and the factors are in 16 bits."""

    def __init__(self, linear: ModelLinear, layout: AdapterLayout) -> None:
        weights, self._kernels = linear.weights, linear.choice(Use.PLAIN)
        columns, inputs = layout.columns - layout.outputs, weights.matrix.shape[1]
        device = weights.matrix.tensors[0].device
        self.a = torch.zeros((columns, inputs), dtype=weights.dtype, device=device)

    def __call__(self, x: Tensor) -> Tensor:
        found = self._kernels.of(len(x)).plain(x)
        return torch.cat((found, torch.mm(x, self.a.t())), dim=1)


class CudaAdaptedLinear:
    """A linear of the model and all adapters: a kernel adds what the second factors make of the
    first ones."""

    def __init__(self, linear: ModelLinear, layout: AdapterLayout) -> None:
        weight = linear.weights.plain
        self._is_fixed = linear.is_invariant
        if weight is None:
            self._first: FirstFactors = SeparateFactors(linear, layout)
        else:
            kind = FixedFactors if self._is_fixed else JoinedFactors
            self._first = kind(linear.weights, weight, layout)
        self._layout, a = layout, self._first.a
        parts = len(layout.starts), layout.capacity, layout.rank
        self._a = a.view(*parts, -1)  # [parts, capacity, rank, inputs]
        self._b = a.new_zeros((layout.part_columns, layout.outputs))  # [capacity * rank, outputs]

    def put(self, index: int, parts: tuple[PartWeights, ...]) -> None:
        """Load an adapter at an index. Linears for which it has no weights add nothing."""
        layout, first = self._layout, index * self._layout.rank
        self._a[:, index].zero_()
        for part in parts:
            rank, number = part.a.shape[1], layout.starts.index(part.first)
            self._a[number, index, :rank].copy_(part.a.t(), non_blocking=True)
            b = self._b[first : first + rank, part.first : part.end]
            b.copy_(part.b, non_blocking=True)

    def __call__(self, x: Tensor, index: Tensor) -> Tensor:
        """[n, inputs] to [n, outputs], of rows whose adapters have these indices."""
        return add_adapted(self._first(x), self._b, index, self._layout)

    def gated(self, x: Tensor, index: Tensor, is_silu: bool, late: DeferredNorm) -> Tensor:
        """act(gate) * up, of a linear that computes both."""
        if self._is_fixed:  # as in steps without adapters
            return gated(self(x, index), is_silu, late)
        return gate_adapted(self._first(x), self._b, index, self._layout, is_silu, late)

    def add_to(self, total: Tensor, x: Tensor, index: Tensor) -> None:
        """total += self(x, index), in place."""
        add_adapted(self._first.parts(x), self._b, index, self._layout, total)


Widen = Callable[[ModelLinear], CudaAdaptedLinear | None]  # makes room beside a linear
Beside = Callable[[LinearName], Widen]  # for the linears of a layer


def not_adapted(_linear: ModelLinear) -> None:
    """Make no room for adapters."""


def nowhere(_linear: LinearName) -> Widen:
    return not_adapted


@dataclass(frozen=True, slots=True)
class AdapterSizes:
    """How many adapters a GPU has room for, and of which rank."""

    capacity: int
    max_rank: int


class AdapterRoom:
    """Room for adapters beside all linears of a model that can be adapted."""

    def __init__(self, targets: AdapterTargets, sizes: AdapterSizes) -> None:
        self.targets, self.sizes = targets, sizes
        self._rank = -(-sizes.max_rank // RANK_STEP) * RANK_STEP
        self._linears: dict[Site, CudaAdaptedLinear] = {}

    def beside(self, layer: int) -> Beside:
        return lambda linear: partial(self._widen, Site(layer, linear))

    def _widen(self, site: Site, linear: ModelLinear) -> CudaAdaptedLinear:
        sizes = self.targets.sites[site].parts
        starts = tuple(accumulate(sizes[:-1], initial=0))
        room = self.sizes.capacity, self._rank
        layout = AdapterLayout(sum(sizes), starts, *room, has_one_tile=linear.is_invariant)
        self._linears[site] = CudaAdaptedLinear(linear, layout)
        return self._linears[site]

    def put(self, index: int, adapter: AdapterWeights) -> None:
        for site, linear in self._linears.items():
            linear.put(index, adapter.sites.get(site, ()))


class CudaAdapters:
    """Copies an adapter to the GPU when a sequence needs it, behind all steps in flight.

    `column[s]` is the index of the adapter of slot s, or -1. Padding rows have none.
    """

    def __init__(self, room: AdapterRoom, slots: int, device: torch.device) -> None:
        self.host = HostAdapters(room.targets, room.sizes.max_rank, pinned)
        self._room, self._staging = room, Staging(device)
        self._table = AdapterTable(room.sizes.capacity, slots, self._fill)
        self.column = torch.full((slots + 1,), NO_ADAPTER, dtype=torch.int32, device=device)

    def apply(self, plan: Plan) -> None:
        """Follow the changes of a plan."""
        if self._table.apply(plan):
            self._staging.send_into(self.column[:-1], self._table.of_slot)

    def concern(self, slot: Index) -> bool:
        """Whether one of these slots has an adapter."""
        return self._table.of_rows(slot) is not None

    def _fill(self, index: int, identity: str) -> None:
        self._room.put(index, self.host.weights(identity))


def pinned(adapter: AdapterWeights) -> AdapterWeights:
    """The adapter in memory that a GPU copies from by itself, with the inputs of each line of its
    first factors side by side."""
    tensors = [
        one for parts in adapter.sites.values() for part in parts for one in (part.a.t(), part.b)
    ]
    if not tensors:
        return adapter
    sizes = [one.numel() for one in tensors]
    memory = torch.empty(sum(sizes), dtype=tensors[0].dtype, pin_memory=True)
    copies = iter(zip(split(memory, sizes), tensors, strict=True))

    def copied() -> Tensor:
        there, one = next(copies)
        return there.view(one.shape).copy_(one)

    sites = {
        site: tuple(PartWeights(p.first, p.end, copied().t(), copied()) for p in parts)
        for site, parts in adapter.sites.items()
    }
    return replace(adapter, sites=sites)
