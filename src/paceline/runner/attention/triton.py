"""Attention by kernels of our own: split contexts for decodes, tiles of queries for the rest."""

# Kernels take pointers, strides and sizes one by one, and are written as one piece.
# ruff: noqa: PLR0913, PLR0915, PLR0917, SIM102
# pyright: reportMissingImports=false, reportIndexIssue=false, reportAttributeAccessIssue=false

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.core.arrays import I32
from paceline.runner.attention.backend import Prepared
from paceline.runner.batch import Batch
from paceline.runner.kv_store import KVStore

BUSY = 384  # programs that fill a large card, about three on each of its processors
LEAST = 16  # rows and columns of the smallest product that tensor cores take
MOST_SPLITS = 32
FLOAT_BYTES = 4  # of float32, which tensor cores do not multiply exactly
TILE = 64  # cells that a program reads at a time


class Triton:
    """Reads block tables on the card, so that a step can be launched without the host's eyes.

    Everything that depends on the step is in the tensors of its batch: kernels captured in a
    graph do the work of whatever these hold when the graph is replayed.
    """

    def prepare(self, batch: Batch, kv: KVStore) -> Prepared:
        return Decodes(batch, kv) if batch.positions == batch.rows else Tiles(batch, kv)

    def hold(self, batch: Batch, kv: KVStore, heads: int) -> "Decodes":
        """Decodes for a graph; the batch is the memory that every replay reads."""
        return Decodes(batch, kv)


class Decodes:
    """Rows of one position each. Where they are few, several programs share a context.

    context    | tile | tile | tile | tile | tile |
    splits     └ program 0 ─────────┘ program 1 ──┘     the one that ends last joins the results
    """

    def __init__(self, batch: Batch, kv: KVStore) -> None:
        self._batch, self._kv = batch, kv
        longest = batch.block_table.shape[1] * kv.block_size
        wanted = -(-BUSY // (batch.rows * kv.kv_heads))
        self._splits = max(min(wanted, -(-longest // TILE), MOST_SPLITS), 1)
        # How many programs of a row and a head have ended; whoever joins them sets it back.
        self._ended = torch.zeros(
            (batch.rows, kv.kv_heads), dtype=torch.int32, device=kv.content.device
        )

    def lay_out(self) -> None:
        """The kernels read the batch as it is."""

    def refresh(self, contexts: I32) -> None:
        """The kernels see by themselves who reads what."""

    def attend(self, query: Tensor, layer: int, window: int | None, scale: float) -> Tensor:
        batch, kv, splits = self._batch, self._kv, self._splits
        rows, heads, dim = query.shape
        out = torch.empty((rows, heads, dim), dtype=query.dtype, device=query.device)
        parts, peaks = out, out
        if splits > 1:
            on: dict[str, Any] = {"dtype": torch.float32, "device": query.device}
            parts = torch.empty((rows, heads, splits, dim), **on)
            peaks = torch.empty((rows, heads, splits), **on)
        _decode[(kv.kv_heads, rows, splits)](
            query,
            kv.content,
            batch.block_table,
            batch.context,
            out,
            parts,
            peaks,
            self._ended,
            scale,
            window or 0,
            query.stride(0),
            batch.block_table.stride(0),
            kv.content.stride(0),
            kv.content.stride(1) * layer,
            kv.content.stride(2),
            HEADS=heads,
            KV_HEADS=kv.kv_heads,
            GROUP=max(triton.next_power_of_2(heads // kv.kv_heads), LEAST),
            DIM=dim,
            WIDTH=max(triton.next_power_of_2(dim), LEAST),
            BLOCK=kv.block_size,
            CELLS=TILE,
            SPLITS=splits,
            PARTS=triton.next_power_of_2(splits),
            num_warps=4,
            num_stages=3 if query.element_size() < FLOAT_BYTES else 1,
        )
        return out


class Tiles:
    """Rows of any length, cut into tiles of positions; heads that share keys lie beside them.

        row_start   0           5   6               11     tiles of 4
        tile        0       1   2   3       4       .      row r has its first at start // 4 + r

    Where a row has fewer tiles than there are places for, the last place stays empty: so the
    number of programs follows from positions and rows alone, without a look at their lengths.
    """

    def __init__(self, batch: Batch, kv: KVStore) -> None:
        self._batch, self._kv = batch, kv

    def attend(self, query: Tensor, layer: int, window: int | None, scale: float) -> Tensor:
        batch, kv = self._batch, self._kv
        positions, heads, dim = query.shape
        is_small = query.element_size() < FLOAT_BYTES
        group = heads // kv.kv_heads
        pairs = max(128 if is_small else 32, triton.next_power_of_2(group))
        tile = pairs // group
        out = torch.empty((positions, heads, dim), dtype=query.dtype, device=query.device)
        _tiles[(kv.kv_heads, positions // tile + batch.rows)](
            query,
            kv.content,
            batch.block_table,
            batch.context,
            batch.row_start,
            out,
            scale,
            window or 0,
            batch.rows,
            query.stride(0),
            batch.block_table.stride(0),
            kv.content.stride(0),
            kv.content.stride(1) * layer,
            kv.content.stride(2),
            HEADS=heads,
            KV_HEADS=kv.kv_heads,
            TILE=tile,
            PAIRS=pairs,
            DIM=dim,
            WIDTH=max(triton.next_power_of_2(dim), LEAST),
            BLOCK=kv.block_size,
            CELLS=TILE if is_small else 32,
            num_warps=8 if is_small else 4,
            num_stages=2 if is_small else 1,
        )
        return out


@triton.jit
def _decode(
    query,
    content,
    table,
    context,
    out,
    parts,
    peaks,
    ended,
    scale,
    window,
    query_stride,
    table_stride,
    block_stride,
    layer_at,
    cell_stride,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    CELLS: tl.constexpr,
    SPLITS: tl.constexpr,
    PARTS: tl.constexpr,
):
    kv_head, row, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    end = tl.load(context + row).to(tl.int32)
    first = 0
    if window > 0:
        first = tl.maximum(end - window, 0)
    begin = first // CELLS * CELLS
    share = tl.cdiv(tl.cdiv(end - begin, SPLITS), CELLS) * CELLS
    busy = tl.cdiv(end - begin, share)
    begin += split * share
    stop = tl.minimum(begin + share, end)
    if SPLITS > 1:  # with one program a context is never used up, and a way out costs a tenth
        if begin >= end:
            return

    group: tl.constexpr = HEADS // KV_HEADS
    places = tl.arange(0, GROUP)
    head = kv_head * group + places
    dims = tl.arange(0, WIDTH)
    real = (places < group)[:, None] & (dims < DIM)[None, :]
    asked = query + row.to(tl.int64) * query_stride + head[:, None] * DIM + dims[None, :]
    q = tl.load(asked, mask=real, other=0.0)

    peak = tl.full([GROUP], float("-inf"), tl.float32)
    total = tl.zeros([GROUP], tl.float32)
    found = tl.zeros([GROUP, WIDTH], tl.float32)
    turn = scale * 1.4426950408889634  # powers of two are cheaper than those of e
    keys = content + layer_at + kv_head * DIM
    own = table + row.to(tl.int64) * table_stride
    for at in range(begin, stop, CELLS):
        cell = at + tl.arange(0, CELLS)
        there = cell < stop
        block = tl.load(own + cell // BLOCK, mask=there, other=0).to(tl.int64)
        place = block * block_stride + (cell % BLOCK) * cell_stride
        mask = there[:, None] & (dims < DIM)[None, :]
        k = tl.load(keys + place[:, None] + dims[None, :], mask=mask, other=0.0)
        v = tl.load(keys + KV_HEADS * DIM + place[:, None] + dims[None, :], mask=mask, other=0.0)
        scores = tl.dot(q, tl.trans(k.to(q.dtype)), input_precision="ieee") * turn
        scores = tl.where((there & (cell >= first))[None, :], scores, float("-inf"))
        highest = tl.maximum(peak, tl.max(scores, 1))
        # A tile of which nothing is seen leaves no peak, and infinities have no difference.
        base = tl.where(highest == float("-inf"), 0.0, highest)
        weights = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(peak - base)
        total = total * shrink + tl.sum(weights, 1)
        found = found * shrink[:, None]
        found += tl.dot(weights.to(q.dtype), v.to(q.dtype), input_precision="ieee")
        peak = highest

    found = found / total[:, None]
    last = row.to(tl.int64) * HEADS + head
    spot = out + last[:, None] * DIM + dims[None, :]
    if SPLITS == 1:
        tl.store(spot, found.to(out.dtype.element_ty), mask=real)
    else:
        line = last * SPLITS + split
        tl.store(parts + line[:, None] * DIM + dims[None, :], found, mask=real)
        tl.store(peaks + line, peak + tl.log2(total), mask=places < group)
        tl.debug_barrier()  # all of it is written before it is counted
        before = tl.atomic_add(ended + row * KV_HEADS + kv_head, 1, sem="acq_rel")
        if before == busy - 1:
            tl.store(ended + row * KV_HEADS + kv_head, 0)
            for place in tl.static_range(group):
                line_of_head = row.to(tl.int64) * HEADS + kv_head * group + place
                _join(parts, peaks, out, line_of_head, busy, DIM, WIDTH, SPLITS, PARTS)


@triton.jit
def _join(
    parts,
    peaks,
    out,
    line,
    busy,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    SPLITS: tl.constexpr,
    PARTS: tl.constexpr,
):
    """The mean of what programs have found for a head, weighted by what they have seen."""
    part, dims = tl.arange(0, PARTS), tl.arange(0, WIDTH)
    at = line * SPLITS + part
    there = part < busy
    mass = tl.load(peaks + at, mask=there, other=float("-inf"), cache_modifier=".cg")
    weights = tl.exp2(mass - tl.max(mass, 0))
    mask = there[:, None] & (dims < DIM)[None, :]
    place = parts + at[:, None] * DIM + dims[None, :]
    mean = tl.load(place, mask=mask, other=0.0, cache_modifier=".cg")
    joined = tl.sum(mean * weights[:, None], 0) / tl.sum(weights, 0)
    tl.store(out + line * DIM + dims, joined.to(out.dtype.element_ty), mask=dims < DIM)


@triton.jit
def _row_of(row_start, rows, tile, TILE: tl.constexpr):
    """The last row whose first tile is not after this one."""
    low, high = 0, rows
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(row_start + middle).to(tl.int32) // TILE + middle <= tile:
            low = middle
        else:
            high = middle
    return low


@triton.jit
def _tiles(
    query,
    content,
    table,
    context,
    row_start,
    out,
    scale,
    window,
    rows,
    query_stride,
    table_stride,
    block_stride,
    layer_at,
    cell_stride,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    TILE: tl.constexpr,
    PAIRS: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    CELLS: tl.constexpr,
):
    kv_head, tile = tl.program_id(0), tl.program_id(1)
    row = _row_of(row_start, rows, tile, TILE)
    start = tl.load(row_start + row).to(tl.int32)
    count = tl.load(row_start + row + 1).to(tl.int32) - start
    skipped = (tile - start // TILE - row) * TILE
    if skipped >= count:
        return
    end = tl.load(context + row).to(tl.int32)

    group: tl.constexpr = HEADS // KV_HEADS
    pair, dims = tl.arange(0, PAIRS), tl.arange(0, WIDTH)
    local = skipped + pair // group
    head = kv_head * group + pair % group
    asks = (pair // group < TILE) & (local < count)
    real = asks[:, None] & (dims < DIM)[None, :]
    index = (start + local).to(tl.int64)
    asked = query + index[:, None] * query_stride + head[:, None] * DIM + dims[None, :]
    q = tl.load(asked, mask=real, other=0.0)
    position = end - count + local
    stop = end - count + tl.minimum(skipped + TILE, count)  # the last of the tile sees up to here
    begin = 0
    if window > 0:
        begin = tl.maximum(end - count + skipped - window + 1, 0) // CELLS * CELLS

    peak = tl.full([PAIRS], float("-inf"), tl.float32)
    total = tl.zeros([PAIRS], tl.float32)
    found = tl.zeros([PAIRS, WIDTH], tl.float32)
    turn = scale * 1.4426950408889634
    keys = content + layer_at + kv_head * DIM
    own = table + row.to(tl.int64) * table_stride
    for at in range(begin, stop, CELLS):
        cell = at + tl.arange(0, CELLS)
        there = cell < stop
        block = tl.load(own + cell // BLOCK, mask=there, other=0).to(tl.int64)
        place = block * block_stride + (cell % BLOCK) * cell_stride
        mask = there[:, None] & (dims < DIM)[None, :]
        k = tl.load(keys + place[:, None] + dims[None, :], mask=mask, other=0.0)
        v = tl.load(keys + KV_HEADS * DIM + place[:, None] + dims[None, :], mask=mask, other=0.0)
        scores = tl.dot(q, tl.trans(k.to(q.dtype)), input_precision="ieee") * turn
        seen = there[None, :] & (cell[None, :] <= position[:, None])
        if window > 0:
            seen = seen & (cell[None, :] > position[:, None] - window)
        scores = tl.where(seen, scores, float("-inf"))
        highest = tl.maximum(peak, tl.max(scores, 1))
        base = tl.where(highest == float("-inf"), 0.0, highest)
        weights = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(peak - base)
        total = total * shrink + tl.sum(weights, 1)
        found = found * shrink[:, None]
        found += tl.dot(weights.to(q.dtype), v.to(q.dtype), input_precision="ieee")
        peak = highest

    found = found / tl.where(total == 0.0, 1.0, total)[:, None]
    spot = out + (index * HEADS + head)[:, None] * DIM + dims[None, :]
    tl.store(spot, found.to(out.dtype.element_ty), mask=real)
