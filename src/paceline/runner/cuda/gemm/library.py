"""Linears of plain weights by torch's library, for any number of rows."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from paceline.runner.cuda.gemm.linear_kernel import LinearKernel, LinearWeights, Use
from paceline.runner.cuda.kernels.dry_run import present
from paceline.runner.cuda.kernels.layers import DeferredNorm, normalized

# Up to so many rows, a norm after the linear is cheaper than a kernel before it. With more inputs
# the limit is lower: every program that needs the length of a row reads the whole row.
LATE_ROWS, LATE_WIDTH, LATE_ROWS_WIDE = 512, 2048, 64
HALVES = (torch.bfloat16, torch.float16)
COMPARED_ROWS = 8  # with fewer, own kernels are as fast, and the library has none on tensor cores
COMPARED, TRIALS = 1 << 19, 32  # outputs that are compared, in at most so many products
ALIGNED_BYTES = 256


def deferred(
    hidden: Tensor, floor: float, weights: LinearWeights, is_fixed: bool = False
) -> tuple[Tensor, DeferredNorm]:
    """The input of a linear, and the norm that is left for after it. With few rows that is
    cheaper than a kernel before the linear. If fixed, the number of rows does not matter."""
    is_wide = hidden.shape[1] > LATE_WIDTH
    most = LATE_ROWS_WIDE if is_wide else LATE_ROWS
    is_before = is_wide if is_fixed else len(hidden) > most
    is_narrow = hidden.dtype == torch.float16  # without a norm, results exceed its range
    if is_before or is_narrow or weights.bias is not None:
        return normalized(hidden, floor), DeferredNorm(hidden, 0.0, 0)
    return hidden, DeferredNorm(hidden, floor, hidden.shape[1])


def by_library(x: Tensor, weight: Tensor, out: Tensor, is_added: bool) -> None:
    """Write x [n, inputs] times weight [outputs, inputs], or add it."""
    if is_added:
        out.addmm_(x, weight.t())
    else:
        torch.mm(x, weight.t(), out=out)


class SameBits:
    """For which shapes the library has the bits of another kernel: where it does not split inputs,
    both add them in their order.

    A product of random rows, compared bit for bit, shows that. Its outputs are so many that those
    of another order would differ in some. The library chooses its kernel by shapes and alignments,
    so the answer holds for all products of these shapes whose memory is aligned.
    """

    def __init__(self, multiply: Callable[[Tensor, Tensor, Tensor, bool], None]) -> None:
        self._multiply = multiply
        self._known: dict[tuple[Any, ...], bool] = {}

    def holds(self, x: Tensor, weight: Tensor, out: Tensor, is_added: bool) -> bool:
        """Shapes that are new in a dry run are compared when it ends. Others are False: comparing
        them in a step would take memory and time."""
        if len(x) < COMPARED_ROWS or not x.is_cuda or x.dtype not in HALVES:
            return False
        if out.numel() * TRIALS < 2 * COMPARED:
            return False
        for one in (x, weight, out):
            if one.data_ptr() % ALIGNED_BYTES or not one.is_contiguous():
                return False
        key = x.device, x.dtype, len(x), weight.shape, is_added
        if key not in self._known and (dry := present()) is not None:
            dry.afterwards(key, lambda: self._compare(key, weight))
        return self._known.get(key, False)

    def _compare(self, key: tuple[Any, ...], weight: Tensor) -> None:
        with torch.inference_mode():
            self._known[key] = self._compared(key[2], weight, key[-1])

    def _compared(self, count: int, weight: Tensor, is_added: bool) -> bool:
        random, seen = torch.Generator(weight.device).manual_seed(0), 0
        rows = weight.new_empty((count, weight.shape[1]))
        due, found = (weight.new_empty((count, len(weight))) for _ in range(2))
        for trial in range(TRIALS):
            rows.normal_(generator=random)
            due.normal_(generator=random).mul_(trial % 2)  # zeros hide no order of sums
            found.copy_(due)
            self._multiply(rows, weight, due, is_added)
            by_library(rows, weight, found, is_added)
            if not torch.equal(due, found):
                return False
            seen += 0 if trial % 2 else int(due.count_nonzero())
            if seen >= COMPARED and trial:
                return True
        return False


class FactoredLinear(LinearKernel):
    """Multiplies inputs by their factor, by the weights, and adds the bias."""

    def __init__(self, weights: LinearWeights) -> None:
        self._weights = weights

    @abstractmethod
    def multiplied(self, x: Tensor) -> Tensor:
        """Inputs times the weights, [n, outputs]."""

    def factored(self, x: Tensor) -> Tensor:
        factor = self._weights.factor
        return x if factor is None else (x * factor).to(x.dtype)

    def plain(self, x: Tensor) -> Tensor:
        return self._biased(self.multiplied(self.factored(x)))

    def normed(self, hidden: Tensor, floor: float) -> tuple[Tensor, DeferredNorm]:
        factor = self._weights.factor
        if factor is None:
            x, late = deferred(hidden, floor, self._weights)
        else:
            x, late = normalized(hidden, floor, factor), DeferredNorm(hidden, 0.0, 0)
        return self._biased(self.multiplied(x)), late

    def _biased(self, found: Tensor) -> Tensor:
        bias = self._weights.bias
        return found if bias is None else found.add_(bias)


class QuantizedInputs(LinearKernel):
    """Quantizes its inputs in the kernel that normalises them."""

    @abstractmethod
    def multiplied(self, x: Tensor, floor: float | None) -> Tensor:
        """The linear of rows, or of normalised rows if there is a floor."""

    def plain(self, x: Tensor) -> Tensor:
        return self.multiplied(x, None)

    def normed(self, hidden: Tensor, floor: float) -> tuple[Tensor, DeferredNorm]:
        return self.multiplied(hidden, floor), DeferredNorm(hidden, 0.0, 0)


class LibraryLinear(LinearKernel):
    """Multiplies plain numbers by the library. A subclass says which."""

    def __init__(self, weights: LinearWeights) -> None:
        self._weights = weights

    @abstractmethod
    def numbers(self, dtype: torch.dtype) -> Tensor:
        """The weights, [outputs, inputs], times the factor of their inputs."""

    def plain(self, x: Tensor) -> Tensor:
        weight, bias = self.numbers(x.dtype).t(), self._weights.bias
        return torch.mm(x, weight) if bias is None else torch.addmm(bias, x, weight)

    def normed(self, hidden: Tensor, floor: float) -> tuple[Tensor, DeferredNorm]:
        x, late = deferred(hidden, floor, self._weights)
        return self.plain(x), late

    def add_to(self, total: Tensor, x: Tensor) -> None:
        total.addmm_(x, self.numbers(x.dtype).t())
        if self._weights.bias is not None:
            total.add_(self._weights.bias)


class Library(LibraryLinear):
    """The last one of the list: it accepts all plain weights."""

    name = "library"

    def __init__(self, weights: LinearWeights, weight: Tensor) -> None:
        super().__init__(weights)
        self._weight = weight

    @classmethod
    def of(cls, weights: LinearWeights, use: Use) -> "Library | None":
        return None if weights.plain is None else cls(weights, weights.plain)

    def numbers(self, dtype: torch.dtype) -> Tensor:
        return self._weight
