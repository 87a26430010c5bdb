"""How a linear is computed on a GPU: what a kernel accepts, and the choice among kernels."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import ClassVar

import torch
from torch import Tensor

from paceline.runner.cuda.kernels.layers import DeferredNorm, gated
from paceline.runner.layers.linear import LinearParts
from paceline.runner.models.experts import ClampedGate, Routing
from paceline.runner.weights.matrix import Matrix, PlainMatrix

ANY = 1 << 30  # rows


class Use(Enum):
    """What a layer computes around a linear. Its norm divides rows by their lengths."""

    PLAIN = "linear"
    NORMED = "norm, linear"
    GATED = "norm, linear, act(gate) * up"
    ADDED = "linear, sum"


@dataclass(slots=True, eq=False)
class LinearWeights:
    """The weights of a linear on a GPU.

    matrix   in the form that is kept
    bias     [outputs], in the type of inputs and outputs
    factor   [inputs], which kernels multiply inputs by; None: it is part of the weights
    read_as  the form that was read, if no kernel computes it
    """

    name: str
    matrix: Matrix
    bias: Tensor | None
    factor: Tensor | None
    dtype: torch.dtype
    read_as: str = ""

    @staticmethod
    def of(parts: LinearParts) -> "LinearWeights":
        matrix, factor = parts.read().folded(parts.factor, parts.dtype)
        bias = None if parts.bias is None else parts.bias.to(parts.dtype)
        return LinearWeights(parts.name, matrix, bias, factor, parts.dtype)

    def decode(self) -> None:
        """Keep plain weights, for kernels that compute no others."""
        self.read_as = self.matrix.form
        self.matrix, self.factor = PlainMatrix(self.matrix.dense()).folded(self.factor, self.dtype)

    @property
    def plain(self) -> Tensor | None:
        """[outputs, inputs], adjacent inputs; None: they are not plain."""
        return self.matrix.weight if isinstance(self.matrix, PlainMatrix) else None


class LinearKernel(ABC):
    """One way to compute a linear for a use, up to so many rows.

    It implements `plain` or `normed` if it accepts a use with that; the activation and the sum are
    kernels behind them, unless it implements these uses too. `floor` is the smallest length that a
    norm divides by. The result of an invariant kernel has the same bits for a row alone and beside
    any other rows.
    """

    name: ClassVar[str]
    is_invariant: ClassVar[bool] = False
    most_rows: int = ANY
    # After `normed`, the next kernel starts when all earlier kernels have ended.
    is_ordered: ClassVar[bool] = False

    @classmethod
    @abstractmethod
    def of(cls, weights: LinearWeights, use: Use) -> "LinearKernel | None":
        """The kernel for these weights; None: it does not accept them, or others are faster."""

    def plain(self, x: Tensor) -> Tensor:
        """[n, inputs] to [n, outputs]."""
        raise NotImplementedError

    def normed(self, hidden: Tensor, floor: float) -> tuple[Tensor, DeferredNorm]:
        """The linear of normalised rows; the next kernel may have to divide it."""
        raise NotImplementedError

    def gated(self, hidden: Tensor, floor: float, is_silu: bool) -> Tensor:
        """act(gate) * up of normalised rows, of a linear that computes both."""
        found, late = self.normed(hidden, floor)
        return gated(found, is_silu, late)

    def add_to(self, total: Tensor, x: Tensor) -> None:
        """total += plain(x), in place."""
        total.add_(self.plain(x))


class KernelChoice:
    """The kernels of one linear, fewest rows first: of those that accept it, the first in order
    that takes so many rows."""

    def __init__(
        self, weights: LinearWeights, use: Use, kinds: Sequence[type[LinearKernel]]
    ) -> None:
        self.kernels: list[LinearKernel] = []
        below = 0
        for kind in kinds:
            kernel = kind.of(weights, use) if below < ANY else None
            if kernel is not None and kernel.most_rows > below:
                self.kernels.append(kernel)
                below = kernel.most_rows
        self.is_complete = below == ANY
        outputs, inputs = weights.matrix.shape
        self._what = f"{outputs} x {inputs} in {weights.matrix.form}"
        if weights.read_as:
            self._what += f", decoded from {weights.read_as}"

    def of(self, rows: int) -> LinearKernel:
        for kernel in self.kernels:
            if rows <= kernel.most_rows:
                return kernel
        raise AssertionError(f"no kernel for {rows} rows")

    def __str__(self) -> str:
        limited = (f"{one.name} up to {one.most_rows}" for one in self.kernels[:-1])
        return f"{self._what}: {', '.join((*limited, self.kernels[-1].name))}"


@dataclass(frozen=True, slots=True)
class ExpertGate:
    """What experts compute of gate and up: the clamp, or else act(gate) * up; without a gate,
    relu(up)^2."""

    is_silu: bool
    clamp: ClampedGate | None
    is_gated: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class ExpertWeights:
    """The weights of all experts of a layer.

    gate_up, down   [experts, outputs, inputs]; in the form that is kept
    biases          [experts, outputs] in float32
    factor          [inputs] of gate_up, which kernels multiply by; None: it is part of the weights
    """

    gate_up: Matrix
    down: Matrix
    gate_up_bias: Tensor | None
    down_bias: Tensor | None
    factor: Tensor | None
    gate: ExpertGate
    dtype: torch.dtype

    def decoded(self) -> "ExpertWeights":
        """Plain weights, for kernels that compute no others."""
        gate_up, factor = PlainMatrix(self.gate_up.dense()).folded(self.factor, self.dtype)
        down, _ = PlainMatrix(self.down.dense()).folded(None, self.dtype)
        return replace(self, gate_up=gate_up, down=down, factor=factor)


@dataclass(frozen=True, slots=True, eq=False)
class ExpertChoice:
    """The experts of some positions.

    share       [positions, chosen]; of each expert in its position
    pairs       [positions * chosen]; those of a tile are adjacent
    tiles       [tiles, 3]: an expert, its first pair, and the end of its pairs. A tile that is not
                used has no expert, but the number of experts instead
    tile_pairs  at most in a tile
    ends        [experts]; the end of the pairs of each; None: each pair is a tile
    index       [positions * chosen]; of each pair in `pairs`; None: each pair is a tile
    """

    share: Tensor
    pairs: Tensor
    tiles: Tensor
    tile_pairs: int
    experts: int
    ends: Tensor | None = None
    index: Tensor | None = None

    @property
    def chosen(self) -> int:
        return self.share.shape[1]


@dataclass(frozen=True, slots=True)
class SharedWeights:
    """The weights of a shared expert, whose inputs have the norm of all experts."""

    gate_up: Matrix
    down: Matrix
    factor: Tensor | None


@dataclass(frozen=True, slots=True, eq=False)
class RouterOutputs:
    """What a router computes of some positions, and how experts are chosen by it.

    outputs      [positions, experts] in float32; the last column may be the gate of a shared expert
    experts      how many a layer has, without the shared one
    correction   [experts]; see `MoESpec`
    floor        the smallest length that the norm of positions divides by
    shared       the weights of the shared expert
    """

    outputs: Tensor
    experts: int
    routing: Routing
    correction: Tensor | None
    floor: float
    shared: SharedWeights | None


class ExpertKernel(ABC):
    """One way to compute the experts of a layer.

    least_rows, most_rows   positions that it takes
    weights                 as the kernel keeps them
    most_scored             positions up to which `add_scored` is faster than `add_to`
    is_invariant            a position has the same bits in any company, if tiles have one size
    """

    name: ClassVar[str]
    is_invariant: ClassVar[bool] = False
    least_rows: int = 0
    most_rows: int = ANY
    most_scored: int = 0
    weights: ExpertWeights

    @classmethod
    @abstractmethod
    def of(cls, weights: ExpertWeights) -> "ExpertKernel | None":
        """The kernel for these weights; None: it does not accept them."""

    @abstractmethod
    def add_to(self, total: Tensor, x: Tensor, choice: ExpertChoice) -> None:
        """total [positions, outputs] += the experts of x [positions, inputs], times their
        shares."""

    def takes_scores(self, routing: Routing, shared: SharedWeights | None) -> bool:
        """Whether it normalises positions, chooses experts and computes the shared one by
        itself."""
        return False

    def add_scored(self, total: Tensor, hidden: Tensor, scores: RouterOutputs) -> None:
        """The same as `add_to` with the shared expert, of the residual stream and scores."""
        raise NotImplementedError


class ExpertKernelChoice:
    """The kernels of the experts of a layer: of those that accept them, the first in order that
    takes so many positions. They share weights in the form that the first one keeps."""

    def __init__(self, weights: ExpertWeights, kinds: Sequence[type[ExpertKernel]]) -> None:
        self.kernels: list[ExpertKernel] = []
        self.is_complete = False
        for kind in kinds:
            kernel = None if self.is_complete else kind.of(weights)
            if kernel is not None:
                self.kernels.append(kernel)
                weights = kernel.weights
                self.is_complete = (kernel.least_rows, kernel.most_rows) == (0, ANY)
        self._weights = weights

    def of(self, rows: int) -> ExpertKernel:
        return next(one for one in self.kernels if one.least_rows <= rows <= one.most_rows)

    def __str__(self) -> str:
        gate_up, down = self._weights.gate_up, self._weights.down
        forms = " and ".join(dict.fromkeys((gate_up.form, down.form)))
        kernels = ", ".join(map(_with_rows, self.kernels))
        return f"{len(down.tensors[0])} in {forms}: {kernels}"


def _with_rows(kernel: ExpertKernel) -> str:
    least = f" from {kernel.least_rows}" if kernel.least_rows else ""
    most = f" up to {kernel.most_rows}" if kernel.most_rows < ANY else ""
    return f"{kernel.name}{least}{most}"
