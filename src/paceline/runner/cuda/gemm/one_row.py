"""Linears of one row, fused with the norm, activation or sum around them."""

# Kernels take pointers, strides and sizes one by one, and are written as one piece.
# ruff: noqa: C901, PLR0913, PLR0917, RUF005
# Parameters of kernels have no types.
# pyright: standard, reportAttributeAccessIssue=false

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from paceline.runner.cuda.gemm.linear_kernel import LinearKernel, LinearWeights, Use
from paceline.runner.cuda.kernels.layers import DeferredNorm

SHORT = 1024  # inputs of an output
MOST_EARLY = 3
# With more rows or inputs, sums and weights exceed the registers, and products on tensor cores are
# faster: a step of 8B with four rows took 88 ms by this kernel, and takes 4.3 ms.
MOST_ROWS, MOST_INPUTS = 1, MOST_EARLY * SHORT


@dataclass(frozen=True, slots=True)
class Tuning:
    """How a linear is split among programs."""

    lines: int  # outputs of a program
    chunk: int  # inputs read at a time
    stages: int  # reads in flight
    early: int  # chunks of weights read before the previous kernel has ended


def tuning(width: int, outputs: int) -> Tuning:
    """Fastest on an H200: 4 to 7 us."""
    lines = 8 if outputs > SHORT else 4
    return Tuning(lines, SHORT, 1, min(-(-width // SHORT), MOST_EARLY))


class OneRow(LinearKernel):
    """One row of plain weights, with the norm or the activation inside.

    A linear is divided by the length of its row afterwards. Every program reads the whole row, so
    it computes the length too.
    """

    name = "one_row"
    most_rows = MOST_ROWS
    is_ordered = True

    def __init__(self, weights: LinearWeights, weight: Tensor) -> None:
        assert weight.stride(1) == 1, "the weights of an output must be adjacent"
        self._weight, self._bias = weight, weights.bias

    @classmethod
    def of(cls, weights: LinearWeights, use: Use) -> "OneRow | None":
        weight = weights.plain
        if use is Use.PLAIN or weight is None or weight.shape[1] > MOST_INPUTS:
            return None
        return cls(weights, weight)

    def normed(self, hidden: Tensor, floor: float) -> tuple[Tensor, DeferredNorm]:
        """Attention may read the store while this runs, so it is ordered: all earlier kernels have
        ended when the next one starts."""
        out = hidden.new_empty((len(hidden), len(self._weight)))
        self._run(hidden, out, floor, is_ordered=True)
        return out, DeferredNorm(hidden, 0.0, 0)

    def gated(self, hidden: Tensor, floor: float, is_silu: bool) -> Tensor:
        out = hidden.new_empty((len(hidden), len(self._weight) // 2))
        self._run(hidden, out, floor, is_silu)
        return out

    def add_to(self, total: Tensor, x: Tensor) -> None:
        self._run(x, total, None)

    def _run(
        self,
        x: Tensor,
        out: Tensor,
        floor: float | None,
        is_silu: bool | None = None,
        is_ordered: bool = False,
    ) -> None:
        (rows, width), outputs = x.shape, out.shape[1]
        cut = tuning(width, outputs)
        _thin[(triton.cdiv(outputs, cut.lines),)](
            x,
            self._weight,
            x if self._bias is None else self._bias,
            out,
            floor or 0.0,
            outputs,
            rows,
            PLACES=triton.next_power_of_2(rows),
            INPUTS=width,
            LINES=cut.lines,
            CHUNK=cut.chunk,
            STAGES=cut.stages,
            NORMED=floor is not None,
            BIASED=self._bias is not None,
            GATED=is_silu is not None,
            SILU=is_silu is True,
            EARLY=cut.early,
            ORDERED=is_ordered,
            num_warps=4,
            launch_pdl=cut.early > 0,
        )


@triton.jit
def _finish(
    found,
    other,
    squares,
    bias,
    out,
    floor,
    outputs,
    row,
    line,
    mask,
    NORMED: tl.constexpr,
    BIASED: tl.constexpr,
    GATED: tl.constexpr,
    SILU: tl.constexpr,
):
    """Apply norm, bias and activation; without a norm, add to `out`."""
    spot = out + row[:, None] * outputs + line[None, :]
    length = tl.sqrt(squares + floor * floor)[:, None]
    if NORMED:
        found = found / length
    if BIASED:
        found += tl.load(bias + line, mask=line < outputs, other=0.0).to(tl.float32)[None, :]
    if GATED:
        other = other / length
        if BIASED:
            second = tl.load(bias + outputs + line, mask=line < outputs, other=0.0)
            other += second.to(tl.float32)[None, :]
        if SILU:
            found = found / (1.0 + tl.exp(-found)) * other
        else:
            inner = 0.7978845608028654 * (found + 0.044715 * found * found * found)
            found = found / (1.0 + tl.exp(-2.0 * inner)) * other
    if not NORMED:
        found += tl.load(spot, mask=mask, other=0.0).to(tl.float32)
    tl.store(spot, found.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _factors(weight, line, at, outputs, INPUTS: tl.constexpr, CHUNK: tl.constexpr):
    """Load the weights of some outputs for a chunk of the inputs."""
    place = at + tl.arange(0, CHUNK)
    there = (line < outputs)[:, None] & (place < INPUTS)[None, :]
    spot = weight + line.to(tl.int64)[:, None] * INPUTS + place[None, :]
    return tl.load(spot, mask=there, other=0.0)


@triton.jit
def _values(x, row, at, rows, INPUTS: tl.constexpr, CHUNK: tl.constexpr):
    place = at + tl.arange(0, CHUNK)
    given = (row < rows)[:, None] & (place < INPUTS)[None, :]
    return tl.load(x + row[:, None] * INPUTS + place[None, :], mask=given, other=0.0)


@triton.jit
def _thin(
    x,
    weight,
    bias,
    out,
    floor,
    outputs,
    rows,
    PLACES: tl.constexpr,
    INPUTS: tl.constexpr,
    LINES: tl.constexpr,
    CHUNK: tl.constexpr,
    STAGES: tl.constexpr,
    NORMED: tl.constexpr,
    BIASED: tl.constexpr,
    GATED: tl.constexpr,
    SILU: tl.constexpr,
    EARLY: tl.constexpr,
    ORDERED: tl.constexpr,
):
    """The first `EARLY` chunks of weights are read before the previous kernel has ended. If
    ordered, the next kernel starts after all earlier kernels have ended."""
    if EARLY > 0 and not ORDERED:
        tl.extra.cuda.gdc_launch_dependents()
    line = tl.program_id(0) * LINES + tl.arange(0, LINES)
    row = tl.arange(0, PLACES)
    second = weight + outputs.to(tl.int64) * INPUTS  # of pairs of outputs
    ready, paired = (), ()
    for step in tl.static_range(EARLY):
        ready = ready + (_factors(weight, line, step * CHUNK, outputs, INPUTS, CHUNK),)
        if GATED:
            paired = paired + (_factors(second, line, step * CHUNK, outputs, INPUTS, CHUNK),)
    tl.extra.cuda.gdc_wait()
    if EARLY > 0 and ORDERED:
        tl.extra.cuda.gdc_launch_dependents()
    found = tl.zeros([PLACES, LINES, CHUNK], tl.float32)
    other = tl.zeros([PLACES, LINES, CHUNK], tl.float32)
    squares = tl.zeros([PLACES, CHUNK], tl.float32)
    for step in tl.static_range(EARLY):
        values = _values(x, row, step * CHUNK, rows, INPUTS, CHUNK).to(tl.float32)
        found += values[:, None, :] * ready[step].to(tl.float32)[None, :, :]
        if NORMED:
            squares += values * values
        if GATED:
            other += values[:, None, :] * paired[step].to(tl.float32)[None, :, :]
    for at in tl.range(EARLY * CHUNK, INPUTS, CHUNK, num_stages=STAGES):
        factors = _factors(weight, line, at, outputs, INPUTS, CHUNK).to(tl.float32)
        values = _values(x, row, at, rows, INPUTS, CHUNK).to(tl.float32)
        found += values[:, None, :] * factors[None, :, :]
        if NORMED:
            squares += values * values
        if GATED:
            factors = _factors(second, line, at, outputs, INPUTS, CHUNK).to(tl.float32)
            other += values[:, None, :] * factors[None, :, :]
    mask = (row < rows)[:, None] & (line < outputs)[None, :]
    sums = tl.sum(found, 2), tl.sum(other, 2), tl.sum(squares, 1)
    _finish(
        sums[0], sums[1], sums[2], bias, out, floor, outputs, row, line, mask,
        NORMED, BIASED, GATED, SILU,
    )  # fmt: skip
