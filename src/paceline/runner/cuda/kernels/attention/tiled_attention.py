"""The Triton kernel of paged attention for rows of any length, cut into tiles of queries."""

# Kernels take pointers, strides and sizes one by one, and are written as one piece.
# ruff: noqa: PLR0913, PLR0917
# Parameters of kernels have no types.
# pyright: standard

import triton
import triton.language as tl

from paceline.runner.cuda.kernels.attention.context_parts import first_seen
from paceline.runner.cuda.kernels.layers import capped


@triton.jit
def row_of(row_start, rows, tile, TILE: tl.constexpr):
    """Find the last row whose first tile is not after this one."""
    low, high = 0, rows
    first = tl.load(row_start).to(tl.int32)
    while high - low > 1:
        middle = (low + high) // 2
        if (tl.load(row_start + middle).to(tl.int32) - first) // TILE + middle <= tile:
            low = middle
        else:
            high = middle
    return low


@triton.jit
def asked_by(
    query,
    ends,
    kv_head,
    start,
    count,
    skipped,
    end,
    query_stride,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    TILE: tl.constexpr,
    PAIRS: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    REST: tl.constexpr,
    REST_WIDTH: tl.constexpr,
    ENDS: tl.constexpr,
):
    """The pairs of a tile: their positions in the batch, heads, which there are, and queries; their
    positions in the sequence, the lowest, up to where each reads, and where the last one stops."""
    group: tl.constexpr = HEADS // KV_HEADS
    pair, dims = tl.arange(0, PAIRS), tl.arange(0, WIDTH)
    local = skipped + pair // group
    head = kv_head * group + pair % group
    asks = (pair // group < TILE) & (local < count)
    real = asks[:, None] & (dims < DIM)[None, :]
    index = (start + local).to(tl.int64)
    line = query + index[:, None] * query_stride + head[:, None] * (DIM + REST)
    q = tl.load(line + dims[None, :], mask=real, other=0.0)
    asked = q, q
    if REST > 0:
        rest = DIM + tl.arange(0, REST_WIDTH)
        mask = asks[:, None] & (rest < DIM + REST)[None, :]
        asked = q, tl.load(line + rest[None, :], mask=mask, other=0.0)
    position = end - count + local
    lowest = end - count + skipped
    limit = position + 1
    stop = end - count + tl.minimum(skipped + TILE, count)  # of the last position
    if ENDS:
        limit = tl.load(ends + index, mask=asks, other=0).to(tl.int32)
        stop = tl.max(limit, 0)
    return index, head, asks, asked, position, lowest, limit, stop


@triton.jit
def _look(
    asked,
    keys,
    row_table,
    first,
    begin,
    stop,
    position,
    limit,
    window,
    log2_scale,
    state,
    block_stride,
    cell_stride,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    REST: tl.constexpr,
    REST_WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    CELLS: tl.constexpr,
    CAP: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Attend to cells from `begin` to `stop`, of which those before `first` are not read; without a
    mask if all queries see all of them. A query sees cells before its `limit`."""
    q, more = asked
    peak, total, found = state
    dims, rest = tl.arange(0, WIDTH), DIM + tl.arange(0, REST_WIDTH)
    for at in range(begin, stop, CELLS):
        cell = at + tl.arange(0, CELLS)
        if MASKED:  # blocks in front of the window may be others' by now, and hold NaN
            there = (cell < stop) & (cell >= first)
            block = tl.load(row_table + cell // BLOCK, mask=there, other=0).to(tl.int64)
            mask = there[:, None] & (dims < DIM)[None, :]
        else:
            block = tl.load(row_table + cell // BLOCK).to(tl.int64)
            mask = (cell >= 0)[:, None] & (dims < DIM)[None, :]
        line = keys + (block * block_stride + (cell % BLOCK) * cell_stride)[:, None]
        spot = line + dims[None, :]
        if MASKED or DIM < WIDTH:
            k = tl.load(spot, mask=mask, other=0.0)
        else:
            k = tl.load(spot)
        scores = tl.dot(q, tl.trans(k.to(q.dtype)), input_precision="ieee")
        if REST > 0:
            of_rest = (cell < stop)[:, None] & (rest < DIM + REST)[None, :]
            key = tl.load(line + rest[None, :], mask=of_rest, other=0.0).to(q.dtype)
            scores = tl.dot(more, tl.trans(key), scores, input_precision="ieee")
            v = k
        elif MASKED or DIM < WIDTH:
            v = tl.load(spot + KV_HEADS * DIM, mask=mask, other=0.0)
        else:
            v = tl.load(spot + KV_HEADS * DIM)
        scores = scores * log2_scale
        if CAP > 0:
            scores = capped(scores, CAP)
        if MASKED:
            seen = (cell < stop)[None, :] & (cell[None, :] < limit[:, None])
            if window != 0:
                seen = seen & (cell[None, :] >= first_seen(position, window)[:, None])
            scores = tl.where(seen, scores, float("-inf"))
        highest = tl.maximum(peak, tl.max(scores, 1))
        # If nothing of a tile is visible, the maximum is -inf, and -inf - -inf is NaN.
        base = tl.where(highest == float("-inf"), 0.0, highest) if MASKED else highest
        weights = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(peak - base)
        total = total * shrink + tl.sum(weights, 1)
        found = found * shrink[:, None]
        found += tl.dot(weights.to(q.dtype), v.to(q.dtype), input_precision="ieee")
        peak = highest
    return peak, total, found


@triton.jit
def tiles(
    query,
    content,
    table,
    context,
    row_start,
    out,
    bounds,
    ends,
    sinks,
    scale,
    window,
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
    REST: tl.constexpr,
    REST_WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    CELLS: tl.constexpr,
    CAP: tl.constexpr,
    SINKS: tl.constexpr,
    ENDS: tl.constexpr,
):
    """Rows from `bounds[0]` up to `bounds[1]`, of any length. Keys with REST more dimensions are
    latent: see `decode`. With ENDS, position i reads up to `ends[i]`, which is behind itself or
    behind the last position of its image."""
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()  # not earlier: `decode` starts without waiting
    kv_head, tile = tl.program_id(0), tl.program_id(1)
    skip = tl.load(bounds)
    row = skip + row_of(row_start + skip, tl.load(bounds + 1) - skip, tile, TILE)
    first = tl.load(row_start + skip).to(tl.int32)
    start = tl.load(row_start + row).to(tl.int32)
    count = tl.load(row_start + row + 1).to(tl.int32) - start
    skipped = (tile - (start - first) // TILE - (row - skip)) * TILE
    if (skipped >= count) | (row >= tl.load(bounds + 1)):
        return
    end = tl.load(context + row).to(tl.int32)

    index, head, asks, asked, position, lowest, limit, stop = asked_by(
        query, ends, kv_head, start, count, skipped, end, query_stride,
        HEADS, KV_HEADS, TILE, PAIRS, DIM, WIDTH, REST, REST_WIDTH, ENDS,
    )  # fmt: skip
    seen = first_seen(lowest, window)  # from here on, some query sees
    begin = seen // CELLS * CELLS
    clear = (lowest + 1) // CELLS * CELLS  # up to here, all queries see all cells
    if window != 0:
        clear = begin

    peak = tl.full([PAIRS], float("-inf"), tl.float32)
    total = tl.zeros([PAIRS], tl.float32)
    found = tl.zeros([PAIRS, WIDTH], tl.float32)
    if SINKS:  # a score without a value
        peak = tl.load(sinks + head).to(tl.float32) * 1.4426950408889634
        total = tl.full([PAIRS], 1.0, tl.float32)
    log2_scale = scale * 1.4426950408889634
    keys = content + layer_at
    if REST == 0:
        keys += kv_head * DIM
    row_table = table + row.to(tl.int64) * table_stride
    state = peak, total, found
    state = _look(
        asked, keys, row_table, seen, begin, clear, position, limit, window, log2_scale, state,
        block_stride, cell_stride, KV_HEADS, DIM, WIDTH, REST, REST_WIDTH, BLOCK, CELLS, CAP, False,
    )  # fmt: skip
    peak, total, found = _look(
        asked, keys, row_table, seen, clear, stop, position, limit, window, log2_scale, state,
        block_stride, cell_stride, KV_HEADS, DIM, WIDTH, REST, REST_WIDTH, BLOCK, CELLS, CAP, True,
    )  # fmt: skip

    found = found / tl.where(total == 0.0, 1.0, total)[:, None]
    dims = tl.arange(0, WIDTH)
    real = asks[:, None] & (dims < DIM)[None, :]
    spot = out + (index * HEADS + head)[:, None] * DIM + dims[None, :]
    tl.store(spot, found.to(out.dtype.element_ty), mask=real)
