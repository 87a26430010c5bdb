"""Products of few rows: weights are read once, and what surrounds a product is part of it."""

# Kernels take pointers, strides and sizes one by one, and are written as one piece.
# ruff: noqa: PLR0913, PLR0917
# pyright: reportMissingImports=false, reportIndexIssue=false, reportAttributeAccessIssue=false

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.runner.layers.linear import Dense

LONG, SHORT = 4096, 1024  # inputs of an output
MOST_ROWS = 4  # beyond these, the library's products on tensor cores are faster


@dataclass(frozen=True, slots=True)
class Tuning:
    """How a product is cut: outputs of a program, inputs read at a time, reads under way."""

    lines: int
    chunk: int
    stages: int


def tuning(width: int) -> Tuning:
    """What was fastest on an H200: 4.2 TB/s for a large matrix, 4 to 7 us for a small one."""
    if width > LONG:
        return Tuning(8, 512, 3)
    return Tuning(4, SHORT, 3 if width > SHORT else 1)


def normed(x: Tensor, product: Dense, floor: float, is_silu: bool | None = None) -> Tensor:
    """product(x over its length, at least `floor`); with an activation, of pairs of outputs.

    A product is linear, so rows are divided by their lengths afterwards, and every program finds
    the lengths by the way: it reads all of x anyhow.
    """
    outputs = product.weight.shape[1] // (1 if is_silu is None else 2)
    out = torch.empty((len(x), outputs), dtype=x.dtype, device=x.device)
    _run(x, product, out, floor, is_silu)
    return out


def add(total: Tensor, x: Tensor, product: Dense) -> None:
    """total += product(x)."""
    _run(x, product, total, None, None)


def _run(x: Tensor, product: Dense, out: Tensor, floor: float | None, is_silu: bool | None) -> None:
    (rows, width), outputs = x.shape, out.shape[1]
    assert product.weight.stride(0) == 1, "the weights of an output lie together"
    cut = tuning(width)
    _thin[(triton.cdiv(outputs, cut.lines),)](
        x,
        product.weight,
        x if product.bias is None else product.bias,
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
        BIASED=product.bias is not None,
        GATED=is_silu is not None,
        SILU=is_silu is True,
        num_warps=4,
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
    """What follows a product, or is followed by a sum: then nothing is normed."""
    spot = out + row[:, None] * outputs + line[None, :]
    length = tl.sqrt(squares + floor * floor)[:, None]
    if NORMED:
        found = found / length
    if BIASED:
        found += tl.load(bias + line, mask=line < outputs, other=0.0).to(tl.float32)[None, :]
    if GATED:
        if SILU:
            found = found / (1.0 + tl.exp(-found)) * (other / length)
        else:
            inner = 0.7978845608028654 * (found + 0.044715 * found * found * found)
            found = found / (1.0 + tl.exp(-2.0 * inner)) * (other / length)
    if not NORMED:
        found += tl.load(spot, mask=mask, other=0.0).to(tl.float32)
    tl.store(spot, found.to(out.dtype.element_ty), mask=mask)


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
):
    line = tl.program_id(0) * LINES + tl.arange(0, LINES)
    row, chunk = tl.arange(0, PLACES), tl.arange(0, CHUNK)
    found = tl.zeros([PLACES, LINES, CHUNK], tl.float32)
    other = tl.zeros([PLACES, LINES, CHUNK], tl.float32)
    squares = tl.zeros([PLACES, CHUNK], tl.float32)
    own = weight + line.to(tl.int64)[:, None] * INPUTS
    for at in tl.range(0, INPUTS, CHUNK, num_stages=STAGES):
        place = at + chunk
        there = (line < outputs)[:, None] & (place < INPUTS)[None, :]
        given = (row < rows)[:, None] & (place < INPUTS)[None, :]
        factors = tl.load(own + place[None, :], mask=there, other=0.0).to(tl.float32)
        values = tl.load(x + row[:, None] * INPUTS + place[None, :], mask=given, other=0.0)
        values = values.to(tl.float32)
        found += values[:, None, :] * factors[None, :, :]
        if NORMED:
            squares += values * values
        if GATED:
            beyond = own + outputs.to(tl.int64) * INPUTS + place[None, :]
            factors = tl.load(beyond, mask=there, other=0.0).to(tl.float32)
            other += values[:, None, :] * factors[None, :, :]
    mask = (row < rows)[:, None] & (line < outputs)[None, :]
    sums = tl.sum(found, 2), tl.sum(other, 2), tl.sum(squares, 1)
    _finish(
        sums[0], sums[1], sums[2], bias, out, floor, outputs, row, line, mask,
        NORMED, BIASED, GATED, SILU,
    )  # fmt: skip
