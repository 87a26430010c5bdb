"""What layers read from their states, normalised and gated, and the tails that they leave."""

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from paceline.runner.cuda.kernels.layers import activated
from paceline.runner.cuda.states.convolution import Convolution, kept
from paceline.runner.cuda.states.rows import CudaStateRows, begins

AT_ONCE, FEW_AT_ONCE = 4096, 512  # numbers of a program, unless a group has more
FEW_ROWS = 64
LINE, MOST_LINES = 512, 4  # channels whose tails a program keeps at once, and how many times


@dataclass(frozen=True, slots=True, eq=False)
class GroupNorm:
    """A norm of each of several groups of numbers.

    factor        [width of all groups]
    floor         the smallest length that the norm divides by
    gates_first   the norm is behind the gate
    """

    factor: Tensor
    groups: int
    floor: float
    gates_first: bool


@dataclass(frozen=True, slots=True)
class OutputGates:
    """norm(x) * silu(gate), or norm(x * silu(gate)).

    first        where gates begin among the inputs
    factor       of them
    is_sigmoid   a sigmoid of the gate instead
    """

    norm: GroupNorm | None
    first: int
    factor: float = 1.0
    is_sigmoid: bool = False


def finish(
    x: Tensor,
    inputs: Tensor,
    rows: CudaStateRows,
    gates: OutputGates,
    convolution: Convolution,
    layer: int,
) -> None:
    """Gate x [positions, width] in place, where positions of no row become 0, and keep the tails of
    the convolution."""
    (n, width), norm, tails = x.shape, gates.norm, rows.of_layer(layer)[-1]
    groups = 1 if norm is None else norm.groups
    each = width // groups
    padded = triton.next_power_of_2(each)
    most = AT_ONCE if n > FEW_ROWS and not convolution.is_fixed else FEW_AT_ONCE
    lines = max(min(most // padded, triton.next_power_of_2(groups)), 1)
    programs = triton.cdiv(groups, lines)
    # Where each row is one position, the same programs can keep the tails.
    can_keep = rows.is_decode and not convolution.is_fixed
    keeps = can_keep and programs * LINE * MOST_LINES >= convolution.channels
    if not keeps:
        convolution.keep(inputs, rows, layer)
    _finish[(n, programs)](
        *(x, inputs, tails, rows.slot, rows.row_start, rows.context, rows.end),
        x if norm is None else norm.factor,
        0.0 if norm is None else norm.floor,
        gates.factor,
        tails.stride(0),
        STRIDE=inputs.stride(0),
        GATES=gates.first,
        SIGMOID=gates.is_sigmoid,
        GROUPS=groups,
        WIDTH=each,
        PADDED=padded,
        LINES=lines,
        NORMED=norm is not None,
        GATES_FIRST=norm is not None and norm.gates_first,
        FILLED=rows.is_decode,
        KEEPS=keeps,
        FIRST=convolution.first,
        CHANNELS=convolution.channels,
        TAPS=convolution.taps,
        TAPS_PADDED=convolution.padded_taps,
        PRODUCT=convolution.product,
        PROGRAMS=programs,
        LINE=LINE,
        num_warps=4,
        launch_pdl=True,
        **convolution.options,
    )


# Kernels take pointers, strides and sizes one by one, and are written as one piece.
# ruff: noqa: PLR0913, PLR0917
# Parameters of kernels have no types.
# pyright: standard


@triton.jit
def _finish(
    x,
    inputs,
    tails,
    slot,
    row_start,
    context,
    end,
    norm,
    floor,
    factor,
    tail_stride,
    STRIDE: tl.constexpr,
    GATES: tl.constexpr,
    SIGMOID: tl.constexpr,
    GROUPS: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    LINES: tl.constexpr,
    NORMED: tl.constexpr,
    GATES_FIRST: tl.constexpr,
    FILLED: tl.constexpr,
    KEEPS: tl.constexpr,
    FIRST: tl.constexpr,
    CHANNELS: tl.constexpr,
    TAPS: tl.constexpr,
    TAPS_PADDED: tl.constexpr,
    PRODUCT: tl.constexpr,
    PROGRAMS: tl.constexpr,
    LINE: tl.constexpr,
):
    tl.extra.cuda.gdc_launch_dependents()
    position, part = tl.program_id(0), tl.program_id(1)
    group = part * LINES + tl.arange(0, LINES)[:, None]
    column = tl.arange(0, PADDED)[None, :]
    mask = (group < GROUPS) & (column < WIDTH)
    at = group * WIDTH + column
    scale = tl.load(norm + at, mask=mask & NORMED, other=0.0).to(tl.float32)
    tl.extra.cuda.gdc_wait()
    line = position.to(tl.int64)
    cell = x + line * (GROUPS * WIDTH) + at
    found = tl.load(cell, mask=mask, other=0.0).to(tl.float32)
    gate = tl.load(inputs + line * STRIDE + GATES + at, mask=mask, other=0.0).to(tl.float32)
    if SIGMOID:
        gate = 1.0 / (1.0 + tl.exp(-gate))
    else:
        gate = activated(gate * factor, True)
    if GATES_FIRST:
        found *= gate
    if NORMED:
        found /= tl.sqrt(tl.sum(found * found, 1) + floor * floor)[:, None]
        found *= scale
    if not GATES_FIRST:
        found *= gate
    if not FILLED:
        found = tl.where(position < tl.load(end), found, 0.0)
    tl.store(cell, found.to(x.dtype.element_ty), mask=mask)
    if KEEPS:
        tail = tails + tl.load(slot + position).to(tl.int64) * tail_stride
        row = tail, position, position + 1, begins(row_start, context, position) == 0
        for first in range(part * LINE, CHANNELS, PROGRAMS * LINE):
            channel = first + tl.arange(0, LINE)[None, :]
            kept(inputs, *row, channel, STRIDE, FIRST, CHANNELS, TAPS, TAPS_PADDED, PRODUCT)
