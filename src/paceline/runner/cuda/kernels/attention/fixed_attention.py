"""The Triton kernels of paged attention whose bits do not depend on how rows are computed.

A context is cut into parts whose bounds depend on positions alone. Within a part, tiles of keys are
absorbed in their order, and parts are joined in their order. Sums over keys are GEMMs, whose order
is that of the keys, and multiplications are not fused with additions (`enable_fp_fusion=False`). So
the shape of a program does not matter: `tiled` and `listed` compute the same bits.
"""

# Kernels take pointers, strides and sizes one by one, and are written as one piece.
# ruff: noqa: C901, PLR0913, PLR0915, PLR0917
# Parameters of kernels have no types.
# pyright: standard

import triton
import triton.language as tl

from paceline.runner.cuda.kernels.attention.context_parts import (
    first_seen,
    part_begin,
    part_of,
)
from paceline.runner.cuda.kernels.attention.tiled_attention import asked_by, row_of
from paceline.runner.cuda.kernels.layers import capped

ONES = tl.constexpr(16)  # columns of ones, the fewest that tensor cores multiply by


@triton.jit
def _absorb(
    asked,
    spots,
    seen,
    there,
    log2_scale,
    state,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    REST: tl.constexpr,
    REST_WIDTH: tl.constexpr,
    CAP: tl.constexpr,
):
    """Attend to a tile of cells at `spots`, of which those that are `there` are read."""
    q, more = asked
    peak, total, found = state
    dims = tl.arange(0, WIDTH)
    mask = there[:, None] & (dims < DIM)[None, :]
    k = tl.load(spots[:, None] + dims[None, :], mask=mask, other=0.0)
    scores = tl.dot(q, tl.trans(k.to(q.dtype)), input_precision="ieee")
    if REST > 0:
        rest = DIM + tl.arange(0, REST_WIDTH)
        of_rest = there[:, None] & (rest < DIM + REST)[None, :]
        key = tl.load(spots[:, None] + rest[None, :], mask=of_rest, other=0.0).to(q.dtype)
        scores = tl.dot(more, tl.trans(key), scores, input_precision="ieee")
        v = k
    else:
        v = tl.load(spots[:, None] + KV_HEADS * DIM + dims[None, :], mask=mask, other=0.0)
    scores = scores * log2_scale
    if CAP > 0:
        scores = capped(scores, CAP)
    scores = tl.where(seen, scores, float("-inf"))
    highest = tl.maximum(peak, tl.max(scores, 1))
    # If nothing of a tile is visible, the maximum is -inf, and -inf - -inf is NaN.
    base = tl.where(highest == float("-inf"), 0.0, highest)
    weights = tl.exp2(scores - base[:, None]).to(q.dtype)
    shrink = tl.exp2(peak - base)[:, None]
    ones = tl.full([there.shape[0], ONES], 1.0, q.dtype)
    total = tl.dot(weights, ones, total * shrink, input_precision="ieee")
    found = tl.dot(weights, v.to(q.dtype), found * shrink, input_precision="ieee")
    return highest, total, found


@triton.jit
def _joined(whole, part):
    """Join a part to those before it: highest scores, sums [pairs, ONES], weighted values."""
    before, whole_total, whole_found = whole
    peak, total, found = part
    highest = tl.maximum(before, peak)
    base = tl.where(highest == float("-inf"), 0.0, highest)
    shrink, grow = tl.exp2(before - base)[:, None], tl.exp2(peak - base)[:, None]
    total = whole_total * shrink + total * grow
    return highest, total, whole_found * shrink + found * grow


@triton.jit
def _nothing(PAIRS: tl.constexpr, WIDTH: tl.constexpr):
    peak = tl.full([PAIRS], float("-inf"), tl.float32)
    return peak, tl.zeros([PAIRS, ONES], tl.float32), tl.zeros([PAIRS, WIDTH], tl.float32)


@triton.jit
def _begun(sinks, head, PAIRS: tl.constexpr, WIDTH: tl.constexpr, SINKS: tl.constexpr):
    """What a context begins with: a sink, which is a score without a value, or nothing."""
    peak, total, found = _nothing(PAIRS, WIDTH)
    if SINKS:
        peak = tl.load(sinks + head).to(tl.float32) * 1.4426950408889634
        total = tl.full([PAIRS, ONES], 1.0, tl.float32)
    return peak, total, found


@triton.jit
def _finished(whole):
    """The mean of values, [pairs, width]."""
    _, total, found = whole
    total = tl.max(total, 1)  # its columns are equal
    return found / tl.where(total == 0.0, 1.0, total)[:, None]


@triton.jit
def tiled(
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
    """Rows from `bounds[0]` up to `bounds[1]`, of any length: see `tiles`."""
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()  # not earlier: `listed` starts without waiting
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

    log2_scale = scale * 1.4426950408889634
    keys = content + layer_at
    if REST == 0:
        keys += kv_head * DIM
    row_table = table + row.to(tl.int64) * table_stride
    whole = _begun(sinks, head, PAIRS, WIDTH, SINKS)
    state = _nothing(PAIRS, WIDTH)
    begin = seen // CELLS * CELLS
    part_end = part_begin(part_of(begin) + 1)
    for at in range(begin, stop, CELLS):
        cell = at + tl.arange(0, CELLS)
        there = (cell < stop) & (cell >= seen)
        visible = there[None, :] & (cell[None, :] < limit[:, None])
        if window != 0:
            visible = visible & (cell[None, :] >= first_seen(position, window)[:, None])
        block = tl.load(row_table + cell // BLOCK, mask=there, other=0).to(tl.int64)
        spots = keys + block * block_stride + (cell % BLOCK) * cell_stride
        state = _absorb(
            asked, spots, visible, there, log2_scale, state,
            KV_HEADS, DIM, WIDTH, REST, REST_WIDTH, CAP,
        )  # fmt: skip
        if (at + CELLS == part_end) | (at + CELLS >= stop):
            whole = _joined(whole, state)
            state = _nothing(PAIRS, WIDTH)
            part_end = part_begin(part_of(part_end) + 1)
    dims = tl.arange(0, WIDTH)
    real = asks[:, None] & (dims < DIM)[None, :]
    spot = out + (index * HEADS + head)[:, None] * DIM + dims[None, :]
    tl.store(spot, _finished(whole).to(out.dtype.element_ty), mask=real)


@triton.jit
def listed(
    query,
    content,
    table,
    parts,
    out,
    kept,
    sums,
    ended,
    sinks,
    scale,
    window,
    most_parts,
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
    REST: tl.constexpr,
    REST_WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    CELLS: tl.constexpr,
    FIELDS: tl.constexpr,
    BOUNDED: tl.constexpr,
    CAP: tl.constexpr,
    SINKS: tl.constexpr,
):
    """Rows of one position each: see `decode`. A program has adjacent parts of a context. If these
    are not all, it keeps each of them, and the last program of the context to end joins them.

    kept    [row, part, head, DIM], weighted values
    sums    [row, part, head, 2], highest scores and sums
    """
    tl.extra.cuda.gdc_launch_dependents()
    if not BOUNDED:
        tl.extra.cuda.gdc_wait()
    kv_head, index = tl.program_id(0), tl.program_id(1)
    if BOUNDED:  # noqa: SIM102 (the compiler decides this, the program decides the next)
        if index == tl.num_programs(1) - 1:
            tl.extra.cuda.gdc_wait()
            return
    # Not from L1, which may be older than the list.
    spot = parts + index * FIELDS
    row = tl.load(spot, cache_modifier=".cg")
    end = tl.load(spot + 1, cache_modifier=".cg")
    part = tl.load(spot + 2, cache_modifier=".cg")
    stop = tl.load(spot + 3, cache_modifier=".cg")
    programs = tl.load(spot + 5, cache_modifier=".cg")
    if row < 0:
        return
    first = first_seen(end - 1, window)

    group: tl.constexpr = HEADS // KV_HEADS
    member, dims = tl.arange(0, GROUP), tl.arange(0, WIDTH)
    head = kv_head * group + member
    is_head = member < group
    real = is_head[:, None] & (dims < DIM)[None, :]
    line = query + row.to(tl.int64) * query_stride + head[:, None] * (DIM + REST)
    # Not from L1, which may be older than the kernel before `tiled`.
    cached: tl.constexpr = ".cg" if BOUNDED else ""
    q = tl.load(line + dims[None, :], mask=real, other=0.0, cache_modifier=cached)
    asked = q, q
    if REST > 0:
        rest = DIM + tl.arange(0, REST_WIDTH)
        mask = is_head[:, None] & (rest < DIM + REST)[None, :]
        asked = q, tl.load(line + rest[None, :], mask=mask, other=0.0, cache_modifier=cached)

    log2_scale = scale * 1.4426950408889634
    keys = content + layer_at
    if REST == 0:
        keys += kv_head * DIM
    row_table = table + row.to(tl.int64) * table_stride
    whole = _begun(sinks, tl.where(is_head, head, 0), GROUP, WIDTH, SINKS)
    state = _nothing(GROUP, WIDTH)
    is_kept = is_head & (programs > 1)
    at_row = row.to(tl.int64) * most_parts * HEADS
    begin = tl.maximum(part_begin(part), first // CELLS * CELLS)
    part_end = part_begin(part + 1)
    for at in range(begin, stop, CELLS):
        cell = at + tl.arange(0, CELLS)
        there = (cell < stop) & (cell >= first)
        block = tl.load(row_table + cell // BLOCK, mask=there, other=0).to(tl.int64)
        spots = keys + block * block_stride + (cell % BLOCK) * cell_stride
        state = _absorb(
            asked, spots, there[None, :], there, log2_scale, state,
            KV_HEADS, DIM, WIDTH, REST, REST_WIDTH, CAP,
        )  # fmt: skip
        if (at + CELLS == part_end) | (at + CELLS >= stop):
            peak, total, found = state
            of = at_row + part * HEADS + head
            tl.store(kept + of[:, None] * DIM + dims[None, :], found, mask=real & (programs > 1))
            tl.store(sums + of * 2, peak, mask=is_kept)
            tl.store(sums + of * 2 + 1, tl.max(total, 1), mask=is_kept)
            whole = _joined(whole, state)
            state = _nothing(GROUP, WIDTH)
            part += 1
            part_end = part_begin(part + 1)

    to = out + (row.to(tl.int64) * HEADS + head)[:, None] * DIM + dims[None, :]
    if programs == 1:
        tl.store(to, _finished(whole).to(out.dtype.element_ty), mask=real)
    else:
        tl.debug_barrier()  # all parts are written before the counter rises
        before = tl.atomic_add(ended + row * KV_HEADS + kv_head, 1, sem="acq_rel")
        if before == programs - 1:
            tl.store(ended + row * KV_HEADS + kv_head, 0)
            whole = _begun(sinks, tl.where(is_head, head, 0), GROUP, WIDTH, SINKS)
            for one in tl.range(part_of(first), part_of(end - 1) + 1, num_stages=1):
                of = at_row + one * HEADS + head
                peak = tl.load(sums + of * 2, mask=is_head, other=0.0, cache_modifier=".cg")
                total = tl.load(sums + of * 2 + 1, mask=is_head, other=1.0, cache_modifier=".cg")
                values = kept + of[:, None] * DIM + dims[None, :]
                found = tl.load(values, mask=real, other=0.0, cache_modifier=".cg")
                ones = tl.full([GROUP, ONES], 1.0, tl.float32)
                whole = _joined(whole, (peak, total[:, None] * ones, found))
            tl.store(to, _finished(whole).to(out.dtype.element_ty), mask=real)
