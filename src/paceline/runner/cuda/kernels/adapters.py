"""LoRA kernels: add B·A·x of each row's adapter to a linear that has computed A·x too."""

# Kernels take pointers, strides and sizes one by one, and are written as one piece.
# ruff: noqa: PLR0913, PLR0917
# Parameters of kernels have no types.
# pyright: standard

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.runner.cuda.kernels.layers import DeferredNorm, activated

FEW_ROWS = 256  # up to so many rows, small tiles fill the GPU better
SMALL_TILE, LARGE_TILE, LINES = 16, 64, 64  # rows, and outputs, of a program
MOST_COLUMNS = 128  # of all adapters' first factors, multiplied at a time
MOST_PARTS = 3  # queries, keys and values
STREAM_CHUNK = 256  # inputs read at a time to find the lengths of rows


@dataclass(frozen=True, slots=True)
class AdapterLayout:
    """Layout of adapters beside a linear:

        columns   | outputs | part 0: index 0, index 1 ... | part 1: index 0, index 1 ... |

    Each adapter of a part has `rank` columns. `starts` has the first output of each part. With one
    tile, programs have so many rows whatever the number of rows.
    """

    outputs: int
    starts: tuple[int, ...]
    capacity: int
    rank: int
    has_one_tile: bool = False

    def tile(self, rows: int) -> int:
        """Rows of a program."""
        return SMALL_TILE if rows <= FEW_ROWS and not self.has_one_tile else LARGE_TILE

    @property
    def part_columns(self) -> int:
        return self.capacity * self.rank

    @property
    def columns(self) -> int:
        return self.outputs + len(self.starts) * self.part_columns


def add_adapted(
    found: Tensor, b: Tensor, index: Tensor, layout: AdapterLayout, total: Tensor | None = None
) -> Tensor:
    """Return a linear [n, outputs] and what the adapter of each row adds to it, or add both to
    `total` [n, outputs].

    `found` [n, columns] has the linear and, of all adapters, x @ a; if it is [splits, n, columns],
    it has so many parts of their sum. `b` is [capacity * rank, outputs]; `index` [n] is -1 in rows
    without an adapter.
    """
    rows, outputs = len(index), layout.outputs
    assert len(layout.starts) <= MOST_PARTS, f"a linear has {len(layout.starts)} parts"
    starts = (*layout.starts, outputs, outputs)[:MOST_PARTS]
    sizes = [end - start for start, end in zip(starts, (*starts[1:], outputs), strict=True)]
    tiles = sum(triton.cdiv(size, LINES) for size in sizes)
    tile = layout.tile(rows)
    out = total
    if out is None:
        out = torch.empty((rows, outputs), dtype=b.dtype, device=found.device)
    _add_adapted[(triton.cdiv(rows, tile), tiles)](
        found,
        b,
        index,
        out,
        rows,
        SECOND=starts[1],
        THIRD=starts[2],
        ROWS=tile,
        LINES=LINES,
        SPLITS=found.numel() // (rows * layout.columns),
        SUMMED=total is not None,
        num_warps=4,
        launch_pdl=True,
        **_sizes(layout),
    )
    return out


def gate_adapted(
    found: Tensor,
    b: Tensor,
    index: Tensor,
    layout: AdapterLayout,
    is_silu: bool,
    late: DeferredNorm,
) -> Tensor:
    """Return act(gate) * up of a linear and what adapters add to it, as in `add_adapted`."""
    rows, width = len(index), layout.outputs // 2
    tile = layout.tile(rows)
    out = torch.empty((rows, width), dtype=b.dtype, device=found.device)
    _gate_adapted[(triton.cdiv(rows, tile), triton.cdiv(width, LINES))](
        found,
        b,
        index,
        out,
        late.stream,
        late.floor,
        rows,
        SECOND_PART=len(layout.starts) - 1,
        ROWS=tile,
        LINES=LINES,
        SILU=is_silu,
        STREAM=late.width,
        STREAM_CHUNK=min(late.padded_width, STREAM_CHUNK),
        num_warps=4,
        launch_pdl=True,
        **_sizes(layout),
    )
    return out


def _sizes(layout: AdapterLayout) -> dict[str, int]:
    return {
        "OUTPUTS": layout.outputs,
        "COLUMNS": layout.part_columns,
        "WIDTH": layout.columns,
        "RANK": layout.rank,
        "CHUNK": min(triton.next_power_of_2(layout.part_columns), MOST_COLUMNS),
    }


@triton.jit
def _summed(spot, mask, rows, WIDTH: tl.constexpr, SPLITS: tl.constexpr):
    """Load a tile, and add up its parts."""
    found = tl.load(spot, mask=mask, other=0.0).to(tl.float32)
    for split in tl.static_range(1, SPLITS):
        part = spot + split * rows.to(tl.int64) * WIDTH
        found += tl.load(part, mask=mask, other=0.0).to(tl.float32)
    return found


@triton.jit
def _chunk_added(
    total,
    given,
    b,
    own,
    line,
    end,
    at,
    rows,
    OUTPUTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr,
    RANK: tl.constexpr,
    CHUNK: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """Add a chunk of the columns of a part, which begin at `given`. A row reads those of its own
    adapter and has zeros instead of the others, so rows of any adapters share a linear."""
    column = at + tl.arange(0, CHUNK)
    is_own = own[:, None] == (column // RANK)[None, :]
    values = _summed(given + column[None, :], is_own, rows, WIDTH, SPLITS)
    factors = tl.load(
        b + column.to(tl.int64)[:, None] * OUTPUTS + line[None, :],
        mask=(column < COLUMNS)[:, None] & (line < end)[None, :],
        other=0.0,
    )
    return tl.dot(values.to(b.dtype.element_ty), factors, total, input_precision="ieee")


@triton.jit
def _adapted(
    found,
    b,
    own,
    row,
    line,
    end,
    part,
    rows,
    OUTPUTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr,
    RANK: tl.constexpr,
    CHUNK: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """A tile of the linear and what adapters add to it. Of several chunks, those that no row of
    the tile needs are left out: positions of a prompt have one adapter."""
    start = found + row.to(tl.int64)[:, None] * WIDTH
    mask = (row < rows)[:, None] & (line < end)[None, :]
    total = _summed(start + line[None, :], mask, rows, WIDTH, SPLITS)
    given = start + OUTPUTS + part * COLUMNS
    if COLUMNS <= CHUNK:
        total = _chunk_added(
            total, given, b, own, line, end, 0, rows,
            OUTPUTS, COLUMNS, WIDTH, RANK, CHUNK, SPLITS,
        )  # fmt: skip
    else:
        for at in range(0, COLUMNS, CHUNK):
            in_chunk = (own >= at // RANK) & (own <= (at + CHUNK - 1) // RANK)
            if tl.max(in_chunk.to(tl.int32), 0) > 0:
                total = _chunk_added(
                    total, given, b, own, line, end, at, rows,
                    OUTPUTS, COLUMNS, WIDTH, RANK, CHUNK, SPLITS,
                )  # fmt: skip
    return total


@triton.jit(do_not_specialize=["rows"])
def _add_adapted(
    found,
    b,
    index,
    out,
    rows,
    SECOND: tl.constexpr,
    THIRD: tl.constexpr,
    ROWS: tl.constexpr,
    LINES: tl.constexpr,
    SPLITS: tl.constexpr,
    SUMMED: tl.constexpr,
    OUTPUTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr,
    RANK: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """A tile has outputs of one part."""
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    before: tl.constexpr = (SECOND + LINES - 1) // LINES
    both: tl.constexpr = before + (THIRD - SECOND + LINES - 1) // LINES
    tile = tl.program_id(1)
    part = (tile >= before).to(tl.int32) + (tile >= both).to(tl.int32)
    start = tl.where(part == 0, 0, tl.where(part == 1, SECOND, THIRD))
    end = tl.where(part == 0, SECOND, tl.where(part == 1, THIRD, OUTPUTS))
    first = tl.where(part == 0, 0, tl.where(part == 1, before, both))
    line = start + (tile - first) * LINES + tl.arange(0, LINES)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    own = tl.load(index + row, mask=row < rows, other=-1)
    total = _adapted(
        found, b, own, row, line, end, part, rows,
        OUTPUTS, COLUMNS, WIDTH, RANK, CHUNK, SPLITS,
    )  # fmt: skip
    mask = (row < rows)[:, None] & (line < end)[None, :]
    spot = out + row.to(tl.int64)[:, None] * OUTPUTS + line[None, :]
    if SUMMED:
        total += tl.load(spot, mask=mask, other=0.0).to(tl.float32)
    tl.store(spot, total.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["rows"])
def _gate_adapted(
    found,
    b,
    index,
    out,
    stream,
    floor,
    rows,
    SECOND_PART: tl.constexpr,
    ROWS: tl.constexpr,
    LINES: tl.constexpr,
    SILU: tl.constexpr,
    STREAM: tl.constexpr,
    STREAM_CHUNK: tl.constexpr,
    OUTPUTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr,
    RANK: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """A tile has some gates and the ups that belong to them, which are half of the outputs further
    on, and of the same part or of the next one."""
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    half: tl.constexpr = OUTPUTS // 2
    line = tl.program_id(1) * LINES + tl.arange(0, LINES)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = row < rows
    own = tl.load(index + row, mask=there, other=-1)
    gate = _adapted(
        found, b, own, row, line, half, 0, rows,
        OUTPUTS, COLUMNS, WIDTH, RANK, CHUNK, 1,
    )  # fmt: skip
    up = _adapted(
        found, b, own, row, line + half, OUTPUTS, SECOND_PART, rows,
        OUTPUTS, COLUMNS, WIDTH, RANK, CHUNK, 1,
    )  # fmt: skip
    if STREAM > 0:
        squares = tl.zeros([ROWS], tl.float32)
        for at in range(0, STREAM, STREAM_CHUNK):
            column = at + tl.arange(0, STREAM_CHUNK)
            spot = stream + row.to(tl.int64)[:, None] * STREAM + column[None, :]
            inside = there[:, None] & (column < STREAM)[None, :]
            values = tl.load(spot, mask=inside, other=0.0).to(tl.float32)
            squares += tl.sum(values * values, 1)
        length = tl.sqrt(squares + floor * floor)[:, None]
        gate, up = gate / length, up / length
    mask = there[:, None] & (line < half)[None, :]
    spot = out + row.to(tl.int64)[:, None] * half + line[None, :]
    tl.store(spot, (activated(gate, SILU) * up).to(out.dtype.element_ty), mask=mask)
