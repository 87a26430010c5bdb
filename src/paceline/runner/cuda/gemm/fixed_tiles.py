"""Linears of plain and of fp8 weights whose rows have the same bits in any company."""

# Kernels take pointers, strides and sizes one by one.
# ruff: noqa: PLR0913, PLR0917
# Parameters of kernels have no types.
# pyright: standard

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.runner.cuda.gemm.fp8 import can_convert, fp8_of
from paceline.runner.cuda.gemm.fp8_codes import quantized_rows
from paceline.runner.cuda.gemm.library import QuantizedInputs, SameBits, by_library, deferred
from paceline.runner.cuda.gemm.linear_kernel import LinearKernel, LinearWeights, Use
from paceline.runner.cuda.gemm.streamed_gemm import BLOCK
from paceline.runner.cuda.kernels.layers import DeferredNorm, gated
from paceline.runner.weights.quantized_matrix import ScaledMatrix

FLOAT_BYTES = 4  # of float32, which tensor cores do not multiply exactly
FEW, SOME = 16, 512  # rows
SLICE = 4096  # rows that the library multiplies at a time
SOME_CODES = 128  # rows of codes
NARROW = 32  # outputs of a program up to which it reads more inputs at a time
ENOUGH = 120  # programs that keep a large GPU busy
BAND = 8  # tiles of rows that use the same weights one after another


@dataclass(frozen=True, slots=True)
class Tiles:
    """Rows and outputs of a program, and inputs that it reads at a time.

    A program has all inputs, and tensor cores add up 16 of them after the other. So the sums of an
    output do not depend on these sizes; tests/gpu compares them.
    """

    rows: int
    outputs: int
    inputs: int
    warps: int
    stages: int


def tiles_of(rows: int, outputs: int, dtype: torch.dtype) -> Tiles:
    if dtype.itemsize == FLOAT_BYTES:
        return Tiles(32, 32, 32, 4, 2)
    if rows > SOME:
        return Tiles(128, 128, 64, 8, 4)
    if rows <= FEW:
        return Tiles(16, 64 if outputs >= ENOUGH * 64 else 32, 128, 4, 4)
    bands = triton.cdiv(rows, 64)
    wide = (128, 64, 32) if bands > 1 else (64, 32)
    lines = next((one for one in wide if bands * outputs >= ENOUGH * one), wide[-1] // 2)
    return Tiles(64, lines, 128 if lines <= NARROW else 64, 4, 4)


def code_tiles(rows: int, outputs: int) -> Tiles:
    """Tiles of 128 inputs, which have one scale. Sums do not depend on the other sizes."""
    if rows > SOME_CODES:
        return Tiles(128, 128, BLOCK, 8, 3)
    bands = triton.cdiv(rows, 64)
    lines = next((one for one in (128, 64) if bands * outputs >= ENOUGH * one), 32)
    return Tiles(64, lines, BLOCK, 4, 4)


class FixedTiles(LinearKernel):
    """All inputs in one program, in their order, for any number of rows. Whether a norm comes after
    the linear depends on its width alone."""

    name = "fixed_tiles"
    is_invariant = True

    def __init__(self, weights: LinearWeights, weight: Tensor) -> None:
        self._weights, self._weight = weights, weight

    @classmethod
    def of(cls, weights: LinearWeights, use: Use) -> "FixedTiles | None":
        return None if weights.plain is None else cls(weights, weights.plain)

    def plain(self, x: Tensor) -> Tensor:
        out = x.new_empty((len(x), len(self._weight)))
        self._multiply(x, out, is_added=False)
        return out

    def normed(self, hidden: Tensor, floor: float) -> tuple[Tensor, DeferredNorm]:
        x, late = deferred(hidden, floor, self._weights, is_fixed=True)
        return self.plain(x), late

    def gated(self, hidden: Tensor, floor: float, is_silu: bool) -> Tensor:
        found, late = self.normed(hidden, floor)
        return gated(found, is_silu, late)

    def add_to(self, total: Tensor, x: Tensor) -> None:
        self._multiply(x, total, is_added=True)

    def _multiply(self, x: Tensor, out: Tensor, is_added: bool) -> None:
        """By the library where that has the same bits, which is faster for many rows."""
        weight, bias = self._weight, self._weights.bias
        for rows, into in zip(x.split(SLICE), out.split(SLICE), strict=True):
            if bias is None and SAME_BITS.holds(rows, weight, into, is_added):
                by_library(rows, weight, into, is_added)
            else:
                by_tiles(rows, weight, into, is_added, bias)


class FixedFp8(QuantizedInputs):
    """All inputs in one program: tensor cores add up 128 of them, and these sums are added in
    float32 in their order."""

    name = "fixed_fp8"
    is_invariant = True

    def __init__(self, weights: LinearWeights, matrix: ScaledMatrix) -> None:
        self._weights, self._matrix = weights, matrix

    @classmethod
    def of(cls, weights: LinearWeights, use: Use) -> "FixedFp8 | None":
        matrix = fp8_of(weights)
        if matrix is None or weights.dtype != torch.bfloat16 or matrix.shape[1] % BLOCK:
            return None
        return cls(weights, matrix) if can_convert(matrix.weight.device) else None

    def multiplied(self, x: Tensor, floor: float | None) -> Tensor:
        out = x.new_empty((len(x), self._matrix.shape[0]))
        self._run(x, floor, out, is_added=False)
        return out

    def add_to(self, total: Tensor, x: Tensor) -> None:
        self._run(x, None, total, is_added=True)

    def _run(self, x: Tensor, floor: float | None, out: Tensor, is_added: bool) -> None:
        matrix, bias = self._matrix, self._weights.bias
        group = 0 if matrix.is_by_row else BLOCK
        codes, scale = quantized_rows(x, self._weights.factor, floor, group)
        multiply_codes(codes, scale, matrix, out, bias, is_added)


def by_tiles(
    x: Tensor, weight: Tensor, out: Tensor, is_added: bool, bias: Tensor | None = None
) -> None:
    """Write x [n, inputs] times weight [outputs, inputs], plus the bias, or add it."""
    tiles = tiles_of(len(x), len(weight), x.dtype)
    _launch(x, weight, bias, out, is_added, (1, 0, 0), tiles)


SAME_BITS = SameBits(by_tiles)


def multiplied(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    total: Tensor | None = None,
    tiles: Tiles | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """x [n, inputs] times weight [outputs, inputs], plus the bias, added to `total` if given. The
    type of a new result is that of x, or `dtype`."""
    out = total
    if out is None:
        out = x.new_empty((len(x), len(weight)), dtype=dtype)
    tiles = tiles or tiles_of(len(x), len(weight), x.dtype)
    _launch(x, weight, bias, out, total is not None, (1, 0, 0), tiles)
    return out


def multiply_by_head(x: Tensor, weight: Tensor, out: Tensor) -> None:
    """Multiply [n, heads, inputs] by the weights of each head [heads, outputs, inputs]."""
    heads = len(weight), x.stride(1), out.stride(1)
    tiles = tiles_of(len(x), len(weight) * weight.shape[1], x.dtype)
    _launch(x, weight, None, out, False, heads, tiles)


def _launch(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor,
    is_added: bool,
    heads: tuple[int, int, int],
    tiles: Tiles,
) -> None:
    """`heads` has the number of matrices, and their strides in x and in the result."""
    (outputs, inputs), rows, (count, x_head, out_head) = weight.shape[-2:], len(x), heads
    if not rows:
        return
    programs = triton.cdiv(rows, tiles.rows) * triton.cdiv(outputs, tiles.outputs)
    _multiply[(programs, count)](
        x,
        weight,
        weight if bias is None else bias,
        out,
        rows,
        x.stride(0),
        out.stride(0),
        x_head,
        out_head,
        OUTPUTS=outputs,
        INPUTS=inputs,
        ROWS=tiles.rows,
        LINES=tiles.outputs,
        CHUNK=tiles.inputs,
        BAND=BAND,
        WHOLE=inputs % tiles.inputs == 0,
        BIASED=bias is not None,
        ADDED=is_added,
        num_warps=tiles.warps,
        num_stages=tiles.stages,
        launch_pdl=True,
    )


def multiply_codes(
    codes: Tensor,
    scale: Tensor,
    matrix: ScaledMatrix,
    out: Tensor,
    bias: Tensor | None = None,
    is_added: bool = False,
    tiles: Tiles | None = None,
) -> None:
    """Write or add rows of codes, times their scales and the weights, to `out` [n, outputs]."""
    rows, (outputs, inputs) = len(out), matrix.shape
    tiles = tiles or code_tiles(rows, outputs)
    if not rows:
        return
    _multiply_codes[(triton.cdiv(rows, tiles.rows) * triton.cdiv(outputs, tiles.outputs),)](
        codes,
        scale,
        matrix.weight,
        matrix.scale,
        matrix.scale if bias is None else bias,
        out,
        rows,
        scale.stride(1),
        out.stride(0),
        OUTPUTS=outputs,
        INPUTS=inputs,
        ROWS=tiles.rows,
        LINES=tiles.outputs,
        CHUNK=BLOCK,
        BAND=BAND,
        BY_ROW=matrix.is_by_row,
        BIASED=bias is not None,
        ADDED=is_added,
        num_warps=tiles.warps,
        num_stages=tiles.stages,
        launch_pdl=True,
        enable_fp_fusion=False,
    )


@triton.jit(do_not_specialize=["rows"])
def _multiply(
    x,
    weight,
    bias,
    out,
    rows,
    x_stride,
    out_stride,
    x_head,
    out_head,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    ROWS: tl.constexpr,
    LINES: tl.constexpr,
    CHUNK: tl.constexpr,
    BAND: tl.constexpr,
    WHOLE: tl.constexpr,
    BIASED: tl.constexpr,
    ADDED: tl.constexpr,
):
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    head = tl.program_id(1).to(tl.int64)
    x += head * x_head
    out += head * out_head
    weight += head * (OUTPUTS * INPUTS)
    # Programs of a band of rows share weights in the cache.
    program, bands = tl.program_id(0), tl.cdiv(rows, ROWS)
    across: tl.constexpr = (OUTPUTS + LINES - 1) // LINES
    first = program // (BAND * across) * BAND
    height = tl.minimum(bands - first, BAND)
    row_tile = first + program % (BAND * across) % height
    line_tile = program % (BAND * across) // height
    row = row_tile * ROWS + tl.arange(0, ROWS)
    line = line_tile * LINES + tl.arange(0, LINES)
    index = tl.arange(0, CHUNK)
    is_row, is_line = row < rows, line < OUTPUTS
    # Instead of rows and outputs that do not exist, others are read, and not written.
    given = (row % rows).to(tl.int64)[:, None] * x_stride + index[None, :]
    factors = tl.where(is_line, line, 0).to(tl.int64)[:, None] * INPUTS + index[None, :]
    found = tl.zeros([ROWS, LINES], tl.float32)
    for at in range(0, INPUTS, CHUNK):
        if WHOLE:
            values, factor = tl.load(x + given + at), tl.load(weight + factors + at)
        else:
            left = (index < INPUTS - at)[None, :]
            values = tl.load(x + given + at, mask=left, other=0.0)
            factor = tl.load(weight + factors + at, mask=left, other=0.0)
        found = tl.dot(values, tl.trans(factor), found, input_precision="ieee")
    if BIASED:
        found += tl.load(bias + line, mask=is_line, other=0.0).to(tl.float32)[None, :]
    spot = out + row.to(tl.int64)[:, None] * out_stride + line[None, :]
    there = is_row[:, None] & is_line[None, :]
    if ADDED:
        found += tl.load(spot, mask=there, other=0.0).to(tl.float32)
    tl.store(spot, found.to(out.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["rows"])
def _multiply_codes(
    codes,
    row_scale,
    weight,
    weight_scale,
    bias,
    out,
    rows,
    scale_stride,
    out_stride,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    ROWS: tl.constexpr,
    LINES: tl.constexpr,
    CHUNK: tl.constexpr,
    BAND: tl.constexpr,
    BY_ROW: tl.constexpr,
    BIASED: tl.constexpr,
    ADDED: tl.constexpr,
):
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    # Programs of a band of rows share weights in the cache.
    program, bands = tl.program_id(0), tl.cdiv(rows, ROWS)
    across: tl.constexpr = (OUTPUTS + LINES - 1) // LINES
    first = program // (BAND * across) * BAND
    height = tl.minimum(bands - first, BAND)
    row = (first + program % (BAND * across) % height) * ROWS + tl.arange(0, ROWS)
    line = program % (BAND * across) // height * LINES + tl.arange(0, LINES)
    index = tl.arange(0, CHUNK)
    is_row, is_line = row < rows, line < OUTPUTS
    # Rows and outputs that do not exist are read as the first ones, and not written.
    source, target = tl.where(is_row, row, 0), tl.where(is_line, line, 0)
    given = codes + source.to(tl.int64)[:, None] * INPUTS + index[None, :]
    factors = weight + target.to(tl.int64)[:, None] * INPUTS + index[None, :]
    found = tl.zeros([ROWS, LINES], tl.float32)
    for at in range(0, INPUTS, CHUNK):
        part = tl.dot(tl.load(given + at), tl.trans(tl.load(factors + at)), out_dtype=tl.float32)
        if BY_ROW:
            found += part
        else:
            block = at // CHUNK
            of_rows = tl.load(row_scale + source + block * scale_stride)
            of_lines = tl.load(weight_scale + target // CHUNK * (INPUTS // CHUNK) + block)
            found += part * (of_rows[:, None] * of_lines[None, :])
    if BY_ROW:
        found *= tl.load(row_scale + source)[:, None]
        found *= tl.load(weight_scale + target)[None, :]
    if BIASED:
        found += tl.load(bias + line, mask=is_line, other=0.0).to(tl.float32)[None, :]
    spot = out + row.to(tl.int64)[:, None] * out_stride + line[None, :]
    there = is_row[:, None] & is_line[None, :]
    if ADDED:
        found += tl.load(spot, mask=there, other=0.0).to(tl.float32)
    tl.store(spot, found.to(out.dtype.element_ty), mask=there)
