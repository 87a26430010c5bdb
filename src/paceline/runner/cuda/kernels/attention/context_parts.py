"""A list of the parts of contexts that programs read, made on the GPU once in a step."""

# Kernels take pointers, strides and sizes one by one, and are written as one piece.
# ruff: noqa: PLR0913, PLR0917
# Parameters of kernels have no types.
# pyright: standard

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.runner.batch import Batch

FIELDS = 8  # of a part; two are unused, so that its fields are within 32 bytes
CLASSES = 4  # of sizes of parts
CHUNK = 256  # rows looked at together
JOINED = 8  # parts at a time, unless there are few contexts


FIXED = 0  # instead of a tile: parts with fixed bounds
FIXED_PARTS = tl.constexpr(FIXED)
LEAST = tl.constexpr(11)  # the exponent below which fixed parts have one size


def fixed_parts(cells: int) -> int:
    """How many parts with fixed bounds a context has."""
    exponent = max((cells - 1).bit_length() - 1, LEAST.value)
    return (exponent - LEAST.value) * 8 + ((cells - 1) >> (exponent - 3)) + 1


@triton.jit
def part_of(cell):
    """The part with fixed bounds that has this cell. Its size is an eighth of the largest power of
    two up to its first cell, and at least 256."""
    exponent = tl.maximum((cell.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127, LEAST)
    return (exponent - LEAST) * 8 + (cell >> (exponent - 3))


@triton.jit
def part_begin(part):
    """The first cell of a part with fixed bounds."""
    octave = tl.maximum(part - 8, 0) // 8
    return (part - octave * 8) << (octave + LEAST - 3)


@dataclass(frozen=True, slots=True)
class ContextCut:
    """Sizes of the parts that the contexts of a step are cut into."""

    spare: int  # parts beyond one for each context; half as many as there are contexts, if more
    least: int  # tiles of a part that is not the last one
    tile: int = 64  # cells read at a time; or FIXED, where a tile is a part with fixed bounds
    joined: int = JOINED  # parts joined at a time; a power of two

    def most(self, rows: int) -> int:
        """Parts of so many contexts, whatever their lengths."""
        return rows + max(self.spare, rows // 2)


class PartList:
    """Parts of contexts, the long ones first. `lay_out` fills the list.

        context 0   | tile | tile | tile | tile | tile |        share of 3 tiles
        context 1   | tile | tile |
        parts       └ part 0 ────────────┘ part 1 ─────┘
                    └ part 2 ─────┘

    The share of a part, in tiles, is such that the parts of all contexts are never more than
    there is room for. Those of one context are adjacent, and as equal as tiles allow.
    """

    def __init__(self, batch: Batch, bounds: Tensor | None, window: int, cut: ContextCut) -> None:
        """For all rows, or those up to `bounds[0]`; 0 is no window, and below 0 is a chunk."""
        self._batch, self._bounds, self._window, self._cut = batch, bounds, window, cut
        # Row (none: -1), context, first tile, cell after the last, first part of the row, parts.
        self.parts = torch.full(
            (cut.most(batch.rows), FIELDS), -1, dtype=torch.int32, device=batch.context.device
        )

    def lay_out(self) -> None:
        rows, cut, context = self._batch.rows, self._cut, self._batch.context
        _list[(rows,)](
            context,
            context if self._bounds is None else self._bounds,
            self.parts,
            rows,
            self._window,
            cut.spare,
            cut.least,
            len(self.parts),
            CELLS=cut.tile,
            BOUNDED=self._bounds is not None,
            FIELDS=FIELDS,
            CLASSES=CLASSES,
            CHUNK=CHUNK,
            num_warps=4,
            launch_pdl=True,
        )


@triton.jit(do_not_specialize=["rows", "window", "spare", "least", "room"])
def _list(
    context,
    bounds,
    parts,
    rows,
    window,
    spare,
    least,
    room,
    CELLS: tl.constexpr,
    BOUNDED: tl.constexpr,
    FIELDS: tl.constexpr,
    CLASSES: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Write the parts of one context, and clear some of the list behind all parts.

    It does not let the next kernel start early: in the first run of a step, `decode` may follow at
    once, and it may read the list before it waits.
    """
    tl.extra.cuda.gdc_wait()
    row, step = tl.program_id(0), tl.num_programs(0)
    if BOUNDED:
        rows = tl.load(bounds)
    total = 0
    for at in range(0, rows, CHUNK):
        _, _, tiles = _tiles(context, at + tl.arange(0, CHUNK), rows, window, CELLS)
        total += tl.sum(tiles, 0)
    share = tl.maximum(tl.cdiv(total, tl.maximum(spare, rows // 2)), least)

    end, first, tiles = _tiles(context, row, rows, window, CELLS)
    size, count = _even(tiles, share)
    rank = tl.cdiv(size * CLASSES, share)
    before, everything = 0, 0
    for at in range(0, rows, CHUNK):
        other = at + tl.arange(0, CHUNK)
        _, _, their_tiles = _tiles(context, other, rows, window, CELLS)
        their_size, their_count = _even(their_tiles, share)
        their_rank = tl.cdiv(their_size * CLASSES, share)
        # Long parts first, so that short ones fill up the end. Rows of about the same size stay in
        # their order: neighbours may have a prefix in common, which is then in the cache.
        is_before = (their_rank > rank) | ((their_rank == rank) & (other < row))
        before += tl.sum(tl.where(is_before, their_count, 0), 0)
        everything += tl.sum(their_count, 0)

    for at in range(0, count, CHUNK):
        part = at + tl.arange(0, CHUNK)
        begin = first + part * size
        if CELLS == FIXED_PARTS:
            stop = tl.minimum(part_begin(begin + size), end)
        else:
            stop = tl.minimum((begin + size) * CELLS, end)
        spot, mask = parts + (before + part) * FIELDS, part < count
        tl.store(spot, row, mask=mask)
        tl.store(spot + 1, end, mask=mask)
        tl.store(spot + 2, begin, mask=mask)
        tl.store(spot + 3, stop, mask=mask)
        tl.store(spot + 4, before, mask=mask)
        tl.store(spot + 5, count, mask=mask)
    for at in range(everything + row, room, step * CHUNK):
        part = at + step * tl.arange(0, CHUNK)
        tl.store(parts + part * FIELDS, -1, mask=part < room)


@triton.jit
def first_seen(position, window):
    """The first position that one sees: of its window; of its chunk of so many positions, if the
    window is below zero; or of all, if it is zero."""
    first = position * 0
    if window > 0:
        first = tl.maximum(position - window + 1, 0)
    elif window < 0:
        first = position // -window * -window
    return first


@triton.jit
def _tiles(context, row, rows, window, CELLS: tl.constexpr):
    """Context, first tile and number of tiles of rows; no tiles if there is no such row."""
    is_row = row < rows
    end = tl.load(context + row, mask=is_row, other=0).to(tl.int32)
    first = first_seen(tl.maximum(end - 1, 0), window)
    if CELLS == FIXED_PARTS:
        first = part_of(first)
        tiles = part_of(tl.maximum(end - 1, 0)) + 1 - first
    else:
        first = first // CELLS
        tiles = tl.maximum(tl.cdiv(end, CELLS) - first, 1)
    return end, first, tl.where(is_row, tiles, 0)


@triton.jit
def _even(tiles, share):
    """Tiles of a part, and number of parts, if no part has more than its share."""
    size = tl.cdiv(tiles, tl.maximum(tl.cdiv(tiles, share), 1))
    return size, tl.cdiv(tiles, tl.maximum(size, 1))
