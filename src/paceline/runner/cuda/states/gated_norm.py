"""What layers read from their states, normalised and gated."""

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from paceline.runner.cuda.kernels.layers import activated
from paceline.runner.cuda.states.rows import CudaStateRows

AT_ONCE = 4096  # numbers of a program, unless a group has more


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


def gate_and_norm(
    x: Tensor,
    inputs: Tensor,
    rows: CudaStateRows,
    first: int,
    norm: GroupNorm | None,
    factor: float = 1.0,
) -> None:
    """x [positions, width] = norm(x) * silu(gate), or norm(x * silu(gate)), in place. The gates are
    `factor` times the inputs from `first` on. Positions of no row become 0."""
    n, width = x.shape
    groups = 1 if norm is None else norm.groups
    each = width // groups
    padded = triton.next_power_of_2(each)
    lines = max(min(AT_ONCE // padded, triton.next_power_of_2(groups)), 1)
    _gate_and_norm[(n, triton.cdiv(groups, lines))](
        x,
        inputs,
        rows.row_start[len(rows) :],
        x if norm is None else norm.factor,
        0.0 if norm is None else norm.floor,
        factor,
        STRIDE=inputs.stride(0),
        FIRST=first,
        GROUPS=groups,
        WIDTH=each,
        PADDED=padded,
        LINES=lines,
        NORMED=norm is not None,
        GATES_FIRST=norm is not None and norm.gates_first,
        num_warps=4,
        launch_pdl=True,
    )


# Kernels take pointers, strides and sizes one by one, and are written as one piece.
# ruff: noqa: PLR0913, PLR0917
# Parameters of kernels have no types.
# pyright: standard


@triton.jit
def _gate_and_norm(
    x,
    inputs,
    end,
    norm,
    floor,
    factor,
    STRIDE: tl.constexpr,
    FIRST: tl.constexpr,
    GROUPS: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    LINES: tl.constexpr,
    NORMED: tl.constexpr,
    GATES_FIRST: tl.constexpr,
):
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * LINES + tl.arange(0, LINES)[:, None]
    column = tl.arange(0, PADDED)[None, :]
    mask = (group < GROUPS) & (column < WIDTH)
    at = group * WIDTH + column
    cell = x + row * (GROUPS * WIDTH) + at
    found = tl.load(cell, mask=mask, other=0.0).to(tl.float32)
    gate = tl.load(inputs + row * STRIDE + FIRST + at, mask=mask, other=0.0).to(tl.float32)
    gate = activated(gate * factor, True)
    if GATES_FIRST:
        found *= gate
    if NORMED:
        found /= tl.sqrt(tl.sum(found * found, 1) + floor * floor)[:, None]
        found *= tl.load(norm + at, mask=mask, other=0.0).to(tl.float32)
    if not GATES_FIRST:
        found *= gate
    found = tl.where(row < tl.load(end), found, 0.0)
    tl.store(cell, found.to(x.dtype.element_ty), mask=mask)
