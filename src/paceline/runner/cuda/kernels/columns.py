"""Kernels at the start and end of a step: from slots to positions, and from ids to slots."""

# Kernels take pointers, strides and sizes one by one, and are written as one piece.
# ruff: noqa: PLR0913, PLR0917
# Parameters of kernels have no types.
# pyright: standard

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.runner.kv_store import KVStore


def locate(
    tokens: Tensor, table: Tensor, owner: Tensor, position: Tensor, kv: KVStore
) -> tuple[Tensor, Tensor]:
    """Return tokens [n] of slots `owner`, and their cells at the first layer of a block, [groups,
    n], from a table [groups, slots, blocks].
    """
    n = len(owner)
    found = torch.empty_like(owner)
    cells = new_cells(len(table), n, owner.device)
    _locate[(triton.cdiv(n, 128), len(table))](
        tokens,
        table,
        owner,
        position,
        found,
        cells,
        n,
        tokens.stride(0),
        table.stride(0),
        table.stride(1),
        cells.stride(0),
        kv.content.stride(0),
        kv.content.stride(2),
        BLOCK=kv.block_size,
        CHUNK=128,
        launch_pdl=True,
    )
    return found, cells


def new_cells(groups: int, n: int, device: torch.device) -> Tensor:
    """Room for cells, [groups, n]. Those of each group begin at a multiple of 16 bytes: kernels are
    compiled again for pointers to others."""
    return torch.empty((groups, n + n % 2), dtype=torch.int64, device=device)[:, :n]


def settle(tokens: Tensor, position: Tensor, slot: Tensor, context: Tensor, ids: Tensor) -> None:
    """Append ids to the tokens of slots. The last slot is for padding."""
    rows = len(slot)
    _settle[(triton.cdiv(rows, 128),)](
        tokens,
        position,
        slot,
        context,
        ids,
        rows,
        len(tokens) - 1,
        tokens.stride(0),
        CHUNK=128,
        launch_pdl=True,
    )


def flatten_table(
    table: Tensor, context: Tensor, ends: Tensor, blocks: Tensor, last: Tensor, kv: KVStore
) -> None:
    """Write the used entries of `table` [rows, blocks] to `blocks`, row after row.

    `ends` [rows + 1] gets the end of each row, `last` [rows] the used cells of its last block.
    """
    rows = len(table)
    used = (context + (kv.block_size - 1)) // kv.block_size
    torch.cumsum(used, 0, dtype=torch.int32, out=ends[1:])
    _flatten_table[(rows,)](
        table, context, ends, blocks, last, table.stride(0), BLOCK=kv.block_size, CHUNK=128
    )


def spread(
    columns: tuple[Tensor, Tensor, Tensor],
    rows: tuple[Tensor, Tensor, Tensor],
    block_table: Tensor,
    positions: int,
    kv: KVStore,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return tokens and positions of rows of any length, [positions] each, and their cells,
    [groups, positions].

    Columns are tokens, tables and positions by slot; rows are their slots, starts [rows + 1] and
    contexts. Positions after the last row belong to the last slot, which is for padding.
    `block_table` [groups, rows, blocks] is filled in, and the positions of slots advance to their
    contexts.
    """
    tokens, table, position = columns
    slot, row_start, context = rows
    count = len(slot)
    token = torch.empty(positions, dtype=torch.int32, device=slot.device)
    at = torch.empty_like(token)
    groups, cells = len(table), new_cells(len(table), positions, slot.device)
    _spread[(triton.cdiv(positions, 128), groups)](
        tokens,
        table,
        slot,
        row_start,
        context,
        token,
        at,
        cells,
        positions,
        len(tokens) - 1,
        tokens.stride(0),
        table.stride(0),
        table.stride(1),
        cells.stride(0),
        kv.content.stride(0),
        kv.content.stride(2),
        count,
        HALVINGS=(len(tokens) - 1).bit_length(),  # enough for as many rows as there are slots
        BLOCK=kv.block_size,
        CHUNK=128,
        launch_pdl=True,
    )
    _lay_out[(count, groups)](
        table,
        position,
        slot,
        context,
        block_table,
        len(tokens) - 1,
        table.stride(0),
        table.stride(1),
        block_table.stride(0),
        block_table.stride(1),
        BLOCK=kv.block_size,
        CHUNK=128,
        launch_pdl=True,
    )
    return token, at, cells


def begin(
    columns: tuple[Tensor, Tensor, Tensor],
    slot: Tensor,
    context: Tensor,
    block_table: Tensor,
    kv: KVStore,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return token and position of one position for each row, [rows] each, and its cells, [groups,
    rows].

    Columns are tokens, tables and positions by slot. `context` [rows] and `block_table` [groups,
    rows, blocks] are filled in.
    """
    tokens, table, position = columns
    rows = len(slot)
    token, at = torch.empty_like(slot), torch.empty_like(slot)
    cells = new_cells(len(table), rows, slot.device)
    _begin[(rows, len(table))](
        tokens,
        table,
        position,
        slot,
        token,
        at,
        cells,
        context,
        block_table,
        tokens.stride(0),
        table.stride(0),
        table.stride(1),
        block_table.stride(0),
        cells.stride(0),
        kv.content.stride(0),
        kv.content.stride(2),
        BLOCK=kv.block_size,
        CHUNK=128,
        launch_pdl=True,
    )
    return token, at, cells


@triton.jit(do_not_specialize=["group_cells"])
def _begin(
    tokens,
    table,
    position,
    slot,
    token,
    at,
    cells,
    context,
    block_table,
    tokens_stride,
    group_stride,
    table_stride,
    group_rows,
    group_cells,
    block_stride,
    cell_stride,
    BLOCK: tl.constexpr,
    CHUNK: tl.constexpr,
):
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    row, group = tl.program_id(0), tl.program_id(1).to(tl.int64)
    table += group * group_stride
    block_table += group * group_rows
    owner = tl.load(slot + row).to(tl.int64)
    here = tl.load(position + owner)
    block = tl.load(table + owner * table_stride + here // BLOCK).to(tl.int64)
    tl.store(token + row, tl.load(tokens + owner * tokens_stride + here))
    tl.store(at + row, here)
    tl.store(context + row, here + 1)
    tl.store(cells + group * group_cells + row, block * block_stride + here % BLOCK * cell_stride)
    used = here // BLOCK + 1
    for first in range(0, used, CHUNK):
        entry = first + tl.arange(0, CHUNK)
        blocks = tl.load(table + owner * table_stride + entry, mask=entry < used, other=0)
        tl.store(block_table + row.to(tl.int64) * table_stride + entry, blocks, mask=entry < used)


@triton.jit(do_not_specialize=["rows", "group_cells"])
def _spread(
    tokens,
    table,
    slot,
    row_start,
    context,
    token,
    at,
    cells,
    positions,
    padding_slot,
    tokens_stride,
    group_stride,
    table_stride,
    group_cells,
    block_stride,
    cell_stride,
    rows,
    HALVINGS: tl.constexpr,
    BLOCK: tl.constexpr,
    CHUNK: tl.constexpr,
):
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    index = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
    group = tl.program_id(1).to(tl.int64)
    table += group * group_stride
    cells += group * group_cells
    low, high = tl.zeros([CHUNK], tl.int32), tl.zeros([CHUNK], tl.int32) + rows
    for _ in tl.static_range(HALVINGS):  # its row is the last that starts before it
        middle = (low + high) // 2
        is_before = (middle == low) | (tl.load(row_start + middle) <= index)
        low = tl.where(is_before, middle, low)
        high = tl.where(is_before, high, middle)
    end = tl.load(row_start + low + 1)
    mask = index < positions
    is_real = mask & (index < end)
    owner = tl.where(is_real, tl.load(slot + low), padding_slot).to(tl.int64)
    here = tl.where(is_real, tl.load(context + low) - (end - index), 0)
    found = tl.load(tokens + owner * tokens_stride + here, mask=is_real, other=0)
    block = tl.load(table + owner * table_stride + here // BLOCK).to(tl.int64)
    tl.store(token + index, found, mask=mask)
    tl.store(at + index, here, mask=mask)
    tl.store(cells + index, block * block_stride + here % BLOCK * cell_stride, mask=mask)


@triton.jit
def _lay_out(
    table,
    position,
    slot,
    context,
    block_table,
    padding_slot,
    group_stride,
    table_stride,
    group_rows,
    block_stride,
    BLOCK: tl.constexpr,
    CHUNK: tl.constexpr,
):
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    row, group = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    table += group * group_stride
    block_table += group * group_rows
    owner = tl.load(slot + row).to(tl.int64)
    reads = tl.load(context + row)
    if owner < padding_slot:
        tl.store(position + owner, reads)
    used = tl.cdiv(reads, BLOCK)
    for first in range(0, used, CHUNK):
        entry = first + tl.arange(0, CHUNK)
        blocks = tl.load(table + owner * table_stride + entry, mask=entry < used, other=0)
        tl.store(block_table + row * block_stride + entry, blocks, mask=entry < used)


@triton.jit(do_not_specialize=["n", "group_cells"])
def _locate(
    tokens,
    table,
    owner,
    position,
    found,
    cells,
    n,
    tokens_stride,
    group_stride,
    table_stride,
    group_cells,
    block_stride,
    cell_stride,
    BLOCK: tl.constexpr,
    CHUNK: tl.constexpr,
):
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    index = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
    mask, group = index < n, tl.program_id(1).to(tl.int64)
    table += group * group_stride
    cells += group * group_cells
    slot = tl.load(owner + index, mask=mask, other=0).to(tl.int64)
    at = tl.load(position + index, mask=mask, other=0).to(tl.int64)
    token = tl.load(tokens + slot * tokens_stride + at, mask=mask, other=0)
    block = tl.load(table + slot * table_stride + at // BLOCK, mask=mask, other=0).to(tl.int64)
    tl.store(found + index, token, mask=mask)
    tl.store(cells + index, block * block_stride + at % BLOCK * cell_stride, mask=mask)


@triton.jit
def _flatten_table(
    table, context, ends, blocks, last, stride, BLOCK: tl.constexpr, CHUNK: tl.constexpr
):
    row = tl.program_id(0)
    reads = tl.load(context + row)
    begin, end = tl.load(ends + row), tl.load(ends + row + 1)
    for at in range(0, end - begin, CHUNK):
        entry = at + tl.arange(0, CHUNK)
        mask = entry < end - begin
        block = tl.load(table + row.to(tl.int64) * stride + entry, mask=mask, other=0)
        tl.store(blocks + begin + entry, block, mask=mask)
    tl.store(last + row, (reads - 1) % BLOCK + 1)


@triton.jit(do_not_specialize=["rows"])
def _settle(tokens, position, slot, context, ids, rows, padding_slot, stride, CHUNK: tl.constexpr):
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    row = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
    owner = tl.load(slot + row, mask=row < rows, other=0).to(tl.int64)
    mask = (row < rows) & (owner < padding_slot)
    at = tl.load(context + row, mask=mask, other=0)
    token = tl.load(ids + row, mask=mask, other=0)
    tl.store(tokens + owner * stride + at, tl.maximum(token, 0), mask=mask)
    tl.store(position + owner, at, mask=mask)
