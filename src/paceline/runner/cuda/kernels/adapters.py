"""What adapters add to a product, from the products with their first factors."""

# Kernels take pointers, strides and sizes one by one, and are written as one piece.
# ruff: noqa: PLR0913, PLR0917

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

FEW_ROWS = 256  # up to so many rows, small tiles fill the GPU better
SMALL_TILE, LARGE_TILE, LINES = 16, 64, 64  # rows, and outputs, of a program
MOST_COLUMNS = 128  # of all adapters' first factors, multiplied at a time
MOST_PARTS = 3  # queries, keys and values


@dataclass(frozen=True, slots=True)
class AdapterLayout:
    """How adapters lie beside a product:

        columns   | outputs | part 0: place 0, place 1 ... | part 1: place 0, place 1 ... |

    Each place of a part has `rank` columns. `starts` has the first output of each part.
    """

    outputs: int
    starts: tuple[int, ...]
    places: int
    rank: int

    @property
    def part_columns(self) -> int:
        return self.places * self.rank

    @property
    def columns(self) -> int:
        return self.outputs + len(self.starts) * self.part_columns


def add_adapted(
    found: Tensor, b: Tensor, place: Tensor, layout: AdapterLayout, total: Tensor | None = None
) -> Tensor:
    """Return a product [n, outputs] and what the adapter of each row adds to it, or add both to
    `total` [n, outputs].

    `found` [n, columns] has the product and, of all adapters, x @ a; if it is [splits, n, columns],
    it has so many parts of their sum. `b` is [places * rank, outputs]; `place` [n] is -1 in rows
    without an adapter.
    """
    rows, outputs = len(place), layout.outputs
    starts = (*layout.starts, outputs, outputs)[:MOST_PARTS]
    sizes = [end - start for start, end in zip(starts, (*starts[1:], outputs), strict=True)]
    tiles = sum(triton.cdiv(size, LINES) for size in sizes)
    tile = SMALL_TILE if rows <= FEW_ROWS else LARGE_TILE
    out = total
    if out is None:
        out = torch.empty((rows, outputs), dtype=b.dtype, device=found.device)
    _add_adapted[(triton.cdiv(rows, tile), tiles)](
        found,
        b,
        place,
        out,
        rows,
        OUTPUTS=outputs,
        SECOND=starts[1],
        THIRD=starts[2],
        COLUMNS=layout.part_columns,
        WIDTH=layout.columns,
        RANK=layout.rank,
        ROWS=tile,
        LINES=LINES,
        CHUNK=min(triton.next_power_of_2(layout.part_columns), MOST_COLUMNS),
        SPLITS=found.numel() // (rows * layout.columns),
        SUMMED=total is not None,
        num_warps=4,
        launch_pdl=True,
    )
    return out


@triton.jit
def _summed(spot, mask, rows, WIDTH: tl.constexpr, SPLITS: tl.constexpr):
    """Load a tile, and add up its parts."""
    found = tl.load(spot, mask=mask, other=0.0).to(tl.float32)
    for split in tl.static_range(1, SPLITS):
        part = spot + split * rows.to(tl.int64) * WIDTH
        found += tl.load(part, mask=mask, other=0.0).to(tl.float32)
    return found


@triton.jit(do_not_specialize=["rows"])
def _add_adapted(
    found,
    b,
    place,
    out,
    rows,
    OUTPUTS: tl.constexpr,
    SECOND: tl.constexpr,
    THIRD: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr,
    RANK: tl.constexpr,
    ROWS: tl.constexpr,
    LINES: tl.constexpr,
    CHUNK: tl.constexpr,
    SPLITS: tl.constexpr,
    SUMMED: tl.constexpr,
):
    """A tile has outputs of one part. Of the columns of this part, a row reads those of its own
    adapter and has zeros instead of the others, so rows of any adapters share a product. Chunks
    that no row of the tile needs are left out: positions of a prompt have one adapter."""
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
    there = row < rows
    own = tl.load(place + row, mask=there, other=-1)
    given = found + row.to(tl.int64)[:, None] * WIDTH
    mask = there[:, None] & (line < end)[None, :]
    total = _summed(given + line[None, :], mask, rows, WIDTH, SPLITS)
    for at in range(0, COLUMNS, CHUNK):
        in_chunk = (own >= at // RANK) & (own <= (at + CHUNK - 1) // RANK)
        if tl.max(in_chunk.to(tl.int32), 0) > 0:
            column = at + tl.arange(0, CHUNK)
            is_own = own[:, None] == (column // RANK)[None, :]
            inner = given + OUTPUTS + part * COLUMNS + column[None, :]
            values = _summed(inner, is_own, rows, WIDTH, SPLITS).to(b.dtype.element_ty)
            factors = tl.load(
                b + column.to(tl.int64)[:, None] * OUTPUTS + line[None, :],
                mask=(column < COLUMNS)[:, None] & (line < end)[None, :],
                other=0.0,
            )
            total = tl.dot(values, factors, total, input_precision="ieee")
    spot = out + row.to(tl.int64)[:, None] * OUTPUTS + line[None, :]
    if SUMMED:
        total += tl.load(spot, mask=mask, other=0.0).to(tl.float32)
    tl.store(spot, total.to(out.dtype.element_ty), mask=mask)
