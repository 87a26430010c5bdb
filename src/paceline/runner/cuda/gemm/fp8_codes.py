"""Rows in 8 bits and back: quantized inputs of GEMMs, decoded weights."""

# Kernels take pointers, strides and sizes one by one, and are written as one piece.
# ruff: noqa: PLR0913, PLR0917
# Parameters of kernels have no types.
# pyright: standard

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.runner.weights.quantized_matrix import FP8, FP8_MAX, INT8_MAX, ScaledMatrix

WIDE = 8192  # inputs of a row; rows with more have more threads
PADDED_ROWS = 16  # with scales of groups, the library takes multiples of so many rows


def quantized_rows(
    x: Tensor,
    factor: Tensor | None,
    floor: float | None,
    group: int = 0,
    dtype: torch.dtype = FP8,
) -> tuple[Tensor, Tensor]:
    """Rows [n, width] as fp8 or int8, and their scales, [n, 1] or one for each group [n, groups],
    those of a group adjacent. With a `floor`, rows are divided by their lengths first, or by
    `floor` if that is larger; then multiplied by the factor [width]. With groups, rows of zeros
    follow."""
    rows, width = x.shape
    padded = -(-rows // PADDED_ROWS) * PADDED_ROWS if group else rows
    codes = torch.empty((padded, width), dtype=dtype, device=x.device)
    groups = width // group if group else 1
    scale = torch.empty((groups, padded), dtype=torch.float32, device=x.device).t()
    _quantize[(padded,)](
        x,
        x if factor is None else factor,
        codes,
        scale,
        floor or 0.0,
        rows,
        padded,
        WIDTH=width,
        PADDED=triton.next_power_of_2(width),
        GROUP=group,
        MOST=FP8_MAX if dtype == FP8 else INT8_MAX,
        ROUNDED=dtype == torch.int8,
        NORMED=floor is not None,
        FACTORED=factor is not None,
        num_warps=16 if width > WIDE else 8,
        launch_pdl=True,
    )
    return codes, scale


def decoded(matrix: ScaledMatrix, factor: Tensor | None, dtype: torch.dtype) -> Tensor:
    """The weights as numbers, [outputs, inputs], times the factor of their inputs."""
    outputs, inputs = matrix.shape
    out = torch.empty((outputs, inputs), dtype=dtype, device=matrix.weight.device)
    _decode[(outputs, triton.cdiv(inputs, 1024))](
        matrix.weight,
        matrix.scale,
        out if factor is None else factor,
        out,
        inputs,
        BLOCK_ROWS=matrix.block[0],
        BLOCK_COLUMNS=inputs if matrix.is_by_row else matrix.block[1],
        COLUMNS=1024,
        FACTORED=factor is not None,
        num_warps=4,
    )
    return out


@triton.jit(do_not_specialize=["rows", "padded"])
def _quantize(
    x,
    factor,
    codes,
    scale,
    floor,
    rows,
    padded,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    GROUP: tl.constexpr,
    MOST: tl.constexpr,
    ROUNDED: tl.constexpr,
    NORMED: tl.constexpr,
    FACTORED: tl.constexpr,
):
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, PADDED)
    inside = index < WIDTH
    there = inside & (row < rows)
    values = tl.load(x + row * WIDTH + index, mask=there, other=0.0).to(tl.float32)
    if NORMED:
        values = values / tl.sqrt(tl.sum(values * values, 0) + floor * floor)
    if FACTORED:
        values = values * tl.load(factor + index, mask=inside, other=0.0)
    if GROUP > 0:
        groups: tl.constexpr = PADDED // GROUP
        parts = tl.reshape(values, [groups, GROUP])
        each = tl.maximum(tl.max(tl.abs(parts), 1), 1e-12) / MOST
        number = tl.arange(0, groups)
        tl.store(scale + number * padded + row, each, mask=number * GROUP < WIDTH)
        found = tl.reshape(parts / each[:, None], [PADDED])
    else:
        one = tl.maximum(tl.max(tl.abs(values), 0), 1e-12) / MOST
        tl.store(scale + row, one)
        found = values / one
    if ROUNDED:
        found = tl.floor(found + 0.5)
    tl.store(codes + row * WIDTH + index, found.to(codes.dtype.element_ty), mask=inside)


@triton.jit
def _decode(
    weight,
    scale,
    factor,
    out,
    inputs,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    COLUMNS: tl.constexpr,
    FACTORED: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    index = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = index < inputs
    groups = tl.cdiv(inputs, BLOCK_COLUMNS)
    values = tl.load(weight + row * inputs + index, mask=inside, other=0.0).to(tl.float32)
    values *= tl.load(scale + row // BLOCK_ROWS * groups + index // BLOCK_COLUMNS, mask=inside)
    if FACTORED:
        values *= tl.load(factor + index, mask=inside, other=0.0)
    tl.store(out + row * inputs + index, values.to(out.dtype.element_ty), mask=inside)
