"""Linears of weights of 8 bits, decoded in registers or, for many rows, for each step."""

# Kernels take pointers, strides and sizes one by one, and are written as one piece.
# ruff: noqa: PLR0913, PLR0917
# Parameters of kernels have no types.
# pyright: standard

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.runner.cuda.gemm.few_rows import FewRows, add_up
from paceline.runner.cuda.gemm.fp8 import Fp8Library
from paceline.runner.cuda.gemm.fp8_codes import decoded, quantized_rows
from paceline.runner.cuda.gemm.library import LibraryLinear, QuantizedInputs
from paceline.runner.cuda.gemm.linear_kernel import LinearWeights, Use
from paceline.runner.weights.quantized_matrix import FP8, ScaledMatrix

LINES = 32  # outputs of a program
BLOCK = 128  # inputs and outputs of a block that has one scale
FP8_ROWS = 16  # beyond, quantizing the inputs costs less than decoding weights
INT8_ROWS = 64
COLUMNS = 1024  # of a program that scales sums
HALVES = (torch.bfloat16, torch.float16)


def scaled_of(weights: LinearWeights) -> ScaledMatrix | None:
    """The weights, if they have 8 bits and scales of rows or of blocks of 128 x 128."""
    matrix = weights.matrix
    if not isinstance(matrix, ScaledMatrix):
        return None
    return matrix if matrix.is_by_row or matrix.block == (BLOCK, BLOCK) else None


def is_whole(matrix: ScaledMatrix) -> bool:
    """Do programs for few rows fill their tiles?"""
    outputs, inputs = matrix.shape
    return outputs % LINES == 0 and inputs % BLOCK == 0


class ScaledFew(FewRows):
    """Few rows, in 16 bits: weights are decoded in registers."""

    name = "scaled_few"

    def __init__(self, weights: LinearWeights, matrix: ScaledMatrix) -> None:
        is_wide = matrix.is_by_row and matrix.shape[1] % (2 * BLOCK) == 0
        self._chunk = 2 * BLOCK if is_wide else BLOCK
        super().__init__(weights, LINES, self._chunk)
        self._matrix = matrix
        self.most_rows = FP8_ROWS if matrix.weight.dtype == FP8 else INT8_ROWS

    @classmethod
    def of(cls, weights: LinearWeights, use: Use) -> "ScaledFew | None":
        matrix = scaled_of(weights)
        if matrix is None or weights.dtype not in HALVES:
            return None
        if not matrix.is_by_row and Fp8Library.of(weights, use) is not None:
            return None  # which reads blocks as fast
        return cls(weights, matrix) if is_whole(matrix) else None

    def launch(
        self, x: Tensor, out: Tensor, parts: Tensor, factor: Tensor | None, is_added: bool
    ) -> None:
        (rows, inputs), outputs, bias = x.shape, out.shape[1], self._weights.bias
        _few[(outputs // LINES, self.splits)](
            x,
            self._matrix.weight,
            self._matrix.scale,
            x if factor is None else factor,
            x if bias is None else bias,
            out,
            parts,
            self.ended,
            rows,
            outputs,
            INPUTS=inputs,
            ROWS=max(triton.next_power_of_2(rows), 16),
            LINES=LINES,
            CHUNK=self._chunk,
            SPLITS=self.splits,
            BY_ROW=self._matrix.is_by_row,
            FACTORED=factor is not None,
            BIASED=bias is not None,
            ADDED=is_added,
            num_warps=4,
            num_stages=4,
            launch_pdl=True,
        )


class Int8Library(QuantizedInputs):
    """Many rows of inputs that are quantized too, if the weights were made for that, by torch's
    library."""

    name = "int8_library"

    def __init__(self, weights: LinearWeights, matrix: ScaledMatrix) -> None:
        self._weights, self._matrix = weights, matrix

    @classmethod
    def of(cls, weights: LinearWeights, use: Use) -> "Int8Library | None":
        """All uses. The library takes no few rows, so others must."""
        matrix = scaled_of(weights)
        if matrix is None or not matrix.takes_int8 or not matrix.is_by_row:
            return None
        is_known = weights.dtype in HALVES and is_whole(matrix)
        return cls(weights, matrix) if is_known else None

    def add_to(self, total: Tensor, x: Tensor) -> None:
        self._run(x, None, total, is_added=True)

    def multiplied(self, x: Tensor, floor: float | None) -> Tensor:
        out = x.new_empty((len(x), self._matrix.shape[0]))
        self._run(x, floor, out, is_added=False)
        return out

    def _run(self, x: Tensor, floor: float | None, out: Tensor, is_added: bool) -> None:
        matrix, bias = self._matrix, self._weights.bias
        codes, row_scale = quantized_rows(x, self._weights.factor, floor, dtype=torch.int8)
        sums = torch.ops.aten._int_mm(codes, matrix.weight.t())
        rows, outputs = out.shape
        _scaled[(rows, triton.cdiv(outputs, COLUMNS))](
            sums,
            row_scale,
            matrix.scale,
            out if bias is None else bias,
            out,
            outputs,
            COLUMNS=COLUMNS,
            BIASED=bias is not None,
            ADDED=is_added,
            num_warps=4,
            launch_pdl=True,
        )


class ScaledDecoded(LibraryLinear):
    """Many rows of weights that no other kernel multiplies: decoded for each step."""

    name = "scaled_decoded"

    def __init__(self, weights: LinearWeights, matrix: ScaledMatrix) -> None:
        super().__init__(weights)
        self._matrix = matrix

    @classmethod
    def of(cls, weights: LinearWeights, use: Use) -> "ScaledDecoded | None":
        """All weights of 8 bits."""
        matrix = scaled_of(weights)
        return None if matrix is None else cls(weights, matrix)

    def numbers(self, dtype: torch.dtype) -> Tensor:
        return decoded(self._matrix, self._weights.factor, dtype)


@triton.jit(do_not_specialize=["rows"])
def _few(
    x,
    weight,
    scale,
    factor,
    bias,
    out,
    parts,
    ended,
    rows,
    outputs,
    INPUTS: tl.constexpr,
    ROWS: tl.constexpr,
    LINES: tl.constexpr,
    CHUNK: tl.constexpr,
    SPLITS: tl.constexpr,
    BY_ROW: tl.constexpr,
    FACTORED: tl.constexpr,
    BIASED: tl.constexpr,
    ADDED: tl.constexpr,
):
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    tile, split = tl.program_id(0), tl.program_id(1)
    row, line = tl.arange(0, ROWS), tile * LINES + tl.arange(0, LINES)
    share: tl.constexpr = INPUTS // SPLITS
    index = split * share + tl.arange(0, CHUNK)
    there = (row < rows)[:, None]
    values = x + row[:, None] * INPUTS + index[None, :]
    codes = weight + line.to(tl.int64)[None, :] * INPUTS + index[:, None]
    block = scale + tile * LINES // 128 * (INPUTS // 128) + split * share // 128
    found = tl.zeros([ROWS, LINES], tl.float32)
    for at in range(0, share, CHUNK):
        given = tl.load(values + at, mask=there, other=0.0)
        if FACTORED:
            by = tl.load(factor + index + at)
            given = (given.to(tl.float32) * by[None, :]).to(x.dtype.element_ty)
        part = tl.load(codes + at).to(tl.float32).to(x.dtype.element_ty)
        if BY_ROW:
            found = tl.dot(given, part, found)
        else:
            found += tl.dot(given, part) * tl.load(block + at // 128)
    if BY_ROW:
        found = found * tl.load(scale + line)[None, :]
    add_up(found, out, parts, ended, bias, line, rows, outputs, SPLITS, BIASED, ADDED)


@triton.jit
def _scaled(
    sums,
    row_scale,
    scale,
    bias,
    out,
    outputs,
    COLUMNS: tl.constexpr,
    BIASED: tl.constexpr,
    ADDED: tl.constexpr,
):
    """Write sums [rows, outputs] of codes, times their scales, or add them."""
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    line = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = line < outputs
    found = tl.load(sums + row * outputs + line, mask=inside, other=0).to(tl.float32)
    found *= tl.load(row_scale + row) * tl.load(scale + line, mask=inside, other=0.0)
    if BIASED:
        found += tl.load(bias + line, mask=inside, other=0.0).to(tl.float32)
    spot = out + row * outputs + line
    if ADDED:
        found += tl.load(spot, mask=inside, other=0.0).to(tl.float32)
    tl.store(spot, found.to(out.dtype.element_ty), mask=inside)
