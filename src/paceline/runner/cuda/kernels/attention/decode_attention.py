"""The Triton kernel of paged attention for rows of one position."""

# Kernels take pointers, strides and sizes one by one, and are written as one piece.
# ruff: noqa: C901, PLR0912, PLR0913, PLR0915, PLR0917
# Parameters of kernels have no types.
# pyright: standard

import triton
import triton.language as tl

from paceline.runner.cuda.kernels.attention.context_parts import first_seen
from paceline.runner.cuda.kernels.attention.heads import grown
from paceline.runner.cuda.kernels.layers import capped


@triton.jit
def decode(
    query,
    content,
    table,
    listed,
    out,
    parts,
    peaks,
    ended,
    cos_sin,
    factor,
    floor,
    value_floor,
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
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    REST: tl.constexpr,
    REST_WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    CELLS: tl.constexpr,
    FIELDS: tl.constexpr,
    PARTS: tl.constexpr,
    BOUNDED: tl.constexpr,
    CAP: tl.constexpr,
    SINKS: tl.constexpr,
    NEW: tl.constexpr,
    NORMED: tl.constexpr,
    ROTATES_FIRST: tl.constexpr,
    VALUE_NORMED: tl.constexpr,
    BY_ROW: tl.constexpr,
    GROWTH: tl.constexpr,
    GROWTH_LENGTH: tl.constexpr,
    GROWTH_OFFSET: tl.constexpr,
):
    """Parts of the contexts of rows of one position each, as `context_parts` has listed them.

    If bounded, it runs beside `tiles`, which is launched first and lets it start once the inputs of
    both are complete. One more row of programs waits for `tiles`, so that the next kernel starts
    after both.

    If NEW, query, key and value are adjacent, as the linear wrote them. They are rotated here, and
    the program of the last part of a context writes key and value to the store. All older cells are
    complete, as the list is, so reading them does not wait for the linear.

    Keys may go on with REST more dimensions. Then they are latent: one vector is the key of all
    heads, and its first DIM numbers are the value. KV_HEADS is the number of programs that share
    the heads of a row.
    """
    tl.extra.cuda.gdc_launch_dependents()
    if not (NEW or BOUNDED):
        tl.extra.cuda.gdc_wait()
    kv_head, index = tl.program_id(0), tl.program_id(1)
    if BOUNDED:  # noqa: SIM102 (the compiler decides this, the program decides the next)
        if index == tl.num_programs(1) - 1:
            tl.extra.cuda.gdc_wait()
            return
    # Not from L1, which may be older than the list.
    spot = listed + index * FIELDS
    row = tl.load(spot, cache_modifier=".cg")
    end = tl.load(spot + 1, cache_modifier=".cg")
    begin = tl.load(spot + 2, cache_modifier=".cg") * CELLS
    stop = tl.load(spot + 3, cache_modifier=".cg")
    first_part = tl.load(spot + 4, cache_modifier=".cg")
    busy = tl.load(spot + 5, cache_modifier=".cg")
    if row < 0:
        return
    is_last = stop == end
    if NEW:
        stop = tl.minimum(stop, end - 1)  # below `begin` if nothing is left to read
    first = first_seen(end - 1, window)

    member, dims = tl.arange(0, GROUP), tl.arange(0, WIDTH)
    rest = DIM + tl.arange(0, REST_WIDTH)
    keys = content + layer_at
    if REST == 0:
        keys += kv_head * DIM
    row_table = table + row.to(tl.int64) * table_stride
    cell = begin + tl.arange(0, CELLS)
    # Blocks in front of the window may be others' by now, and hold NaN.
    seen = (cell < stop) & (cell >= first)
    early = ()
    if NEW:
        early = _read(
            keys, row_table, cell, seen, block_stride, cell_stride,
            KV_HEADS, DIM, WIDTH, REST, REST_WIDTH, BLOCK,
        )  # fmt: skip
        tl.extra.cuda.gdc_wait()

    group: tl.constexpr = HEADS // KV_HEADS
    head = kv_head * group + member
    real = (member < group)[:, None] & (dims < DIM)[None, :]
    line = query + row.to(tl.int64) * query_stride
    log2_scale = scale * 1.4426950408889634  # exp2 is cheaper than exp
    peak = tl.full([GROUP], float("-inf"), tl.float32)
    total = tl.zeros([GROUP], tl.float32)
    found = tl.zeros([GROUP, WIDTH], tl.float32)
    if SINKS:  # a score without a value, in the last part of a context
        sink = tl.load(sinks + head, mask=member < group, other=0.0).to(tl.float32)
        peak = tl.where(is_last, sink * 1.4426950408889634, peak)
        total = tl.where(is_last, 1.0, total)
    if NEW:
        if BY_ROW:
            position = row
        else:
            position = end - 1
        angle = cos_sin + position.to(tl.int64) * DIM
        q = _rotated(line, head, real, angle, factor, floor, DIM, WIDTH, NORMED, ROTATES_FIRST)
        if GROWTH > 0:
            q *= grown(end - 1, GROWTH, GROWTH_LENGTH, GROWTH_OFFSET)
        q = q.to(query.dtype.element_ty)
        one = HEADS + kv_head + tl.arange(0, 1)
        whole = (one >= 0)[:, None] & (dims < DIM)[None, :]
        key = _rotated(line, one, whole, angle, factor, floor, DIM, WIDTH, NORMED, ROTATES_FIRST)
        value = tl.load(line + (one + KV_HEADS)[:, None] * DIM + dims[None, :], mask=whole, other=0)
        if VALUE_NORMED:
            value = value.to(tl.float32)
            squares = tl.sum(value * value, 1) + value_floor * value_floor
            value = value / tl.sqrt(squares / DIM)[:, None]
        key = key.to(content.dtype.element_ty)
        value = value.to(content.dtype.element_ty)
        newest = tl.load(row_table + (end - 1) // BLOCK).to(tl.int64) * block_stride
        spot = keys + newest + ((end - 1) % BLOCK) * cell_stride + dims[None, :]
        tl.store(spot, key, mask=whole & is_last)
        tl.store(spot + KV_HEADS * DIM, value, mask=whole & is_last)
        score = tl.sum(q.to(tl.float32) * key.to(tl.float32), 1) * log2_scale
        if CAP > 0:
            score = capped(score, CAP)
        weight = 1.0
        if SINKS:
            highest = tl.maximum(peak, score)
            weight = tl.exp2(score - highest)
            total = total * tl.exp2(peak - highest) + weight
            score, weight = highest, weight[:, None]
        else:
            total = tl.where(is_last, 1.0, total)
        peak = tl.where(is_last, score, peak)
        found = tl.where(is_last, value.to(tl.float32) * weight, found)
        asked = q, q
    else:
        # Not from L1, which may be older than the kernel before `tiles`.
        cached: tl.constexpr = ".cg" if BOUNDED else ""
        line += head[:, None] * (DIM + REST)
        q = tl.load(line + dims[None, :], mask=real, other=0.0, cache_modifier=cached)
        asked = q, q
        if REST > 0:
            mask = (member < group)[:, None] & (rest < DIM + REST)[None, :]
            more = tl.load(line + rest[None, :], mask=mask, other=0.0, cache_modifier=cached)
            asked = q, more

    state = peak, total, found
    if NEW:
        state = _absorb(asked, early, seen, log2_scale, state, CAP, REST)
        begin += CELLS
    for at in range(begin, stop, CELLS):
        cell = at + tl.arange(0, CELLS)
        there = (cell < stop) & (cell >= first)
        read = _read(
            keys, row_table, cell, there, block_stride, cell_stride,
            KV_HEADS, DIM, WIDTH, REST, REST_WIDTH, BLOCK,
        )  # fmt: skip
        state = _absorb(asked, read, there, log2_scale, state, CAP, REST)
    peak, total, found = state

    found = found / total[:, None]
    if busy == 1:
        to = out + (row.to(tl.int64) * HEADS + head)[:, None] * DIM + dims[None, :]
        tl.store(to, found.to(out.dtype.element_ty), mask=real)
    else:
        part = index * HEADS + head
        tl.store(parts + part[:, None] * DIM + dims[None, :], found, mask=real)
        tl.store(peaks + part, peak + tl.log2(total), mask=member < group)
        tl.debug_barrier()  # all results are written before the counter rises
        before = tl.atomic_add(ended + row * KV_HEADS + kv_head, 1, sem="acq_rel")
        if before == busy - 1:
            tl.store(ended + row * KV_HEADS + kv_head, 0)
            for pair in tl.static_range(0, group, 2):
                _join(
                    parts, peaks, out, row, kv_head * group + pair, group - pair, first_part, busy,
                    HEADS, DIM, WIDTH, PARTS,
                )  # fmt: skip


@triton.jit
def _read(
    keys,
    row_table,
    cell,
    there,
    block_stride,
    cell_stride,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    REST: tl.constexpr,
    REST_WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Load cells of a row, with the block table `row_table`: keys, values, and the rest of keys."""
    dims = tl.arange(0, WIDTH)
    block = tl.load(row_table + cell // BLOCK, mask=there, other=0).to(tl.int64)
    offset = block * block_stride + (cell % BLOCK) * cell_stride
    spot = keys + offset[:, None] + dims[None, :]
    mask = there[:, None] & (dims < DIM)[None, :]
    k = tl.load(spot, mask=mask, other=0.0)
    if REST > 0:
        rest = DIM + tl.arange(0, REST_WIDTH)
        mask = there[:, None] & (rest < DIM + REST)[None, :]
        read = k, k, tl.load(keys + offset[:, None] + rest[None, :], mask=mask, other=0.0)
    else:
        read = k, tl.load(spot + KV_HEADS * DIM, mask=mask, other=0.0), k
    return read


@triton.jit
def _rotated(
    line,
    head,
    mask,
    angle,
    factor,
    floor,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    NORMED: tl.constexpr,
    ROTATES_FIRST: tl.constexpr,
):
    """Load heads of a row [heads, WIDTH], normalise and rotate them."""
    half: tl.constexpr = DIM // 2
    dims = tl.arange(0, WIDTH)
    spot = head[:, None] * DIM + dims[None, :]
    partner = head[:, None] * DIM + ((dims + half) % DIM)[None, :]
    x = tl.load(line + spot, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(line + partner, mask=mask, other=0.0).to(tl.float32)
    if NORMED and not ROTATES_FIRST:
        long = tl.sqrt(tl.sum(x * x, 1) + floor * floor)[:, None]
        x = x / long * tl.load(factor + spot, mask=mask, other=0.0).to(tl.float32)
        y = y / long * tl.load(factor + partner, mask=mask, other=0.0).to(tl.float32)
    cos = tl.load(angle + dims % half, mask=dims < DIM, other=0.0)[None, :]
    sin = tl.load(angle + half + dims % half, mask=dims < DIM, other=0.0)[None, :]
    x = x * cos + tl.where((dims < half)[None, :], -y, y) * sin
    if NORMED and ROTATES_FIRST:
        long = tl.sqrt(tl.sum(x * x, 1) + floor * floor)[:, None]
        x = x / long * tl.load(factor + spot, mask=mask, other=0.0).to(tl.float32)
    return x


@triton.jit
def _absorb(asked, read, seen, log2_scale, state, CAP: tl.constexpr, REST: tl.constexpr):
    """Attend to a tile of cells, some of which are visible."""
    q, more = asked
    k, v, rest = read
    peak, total, found = state
    scores = tl.dot(q, tl.trans(k.to(q.dtype)), input_precision="ieee")
    if REST > 0:
        scores = tl.dot(more, tl.trans(rest.to(q.dtype)), scores, input_precision="ieee")
    scores = scores * log2_scale
    if CAP > 0:
        scores = capped(scores, CAP)
    scores = tl.where(seen[None, :], scores, float("-inf"))
    highest = tl.maximum(peak, tl.max(scores, 1))
    # If nothing of a tile is visible, the maximum is -inf, and -inf - -inf is NaN.
    base = tl.where(highest == float("-inf"), 0.0, highest)
    weights = tl.exp2(scores - base[:, None])
    shrink = tl.exp2(peak - base)
    total = total * shrink + tl.sum(weights, 1)
    found = found * shrink[:, None]
    found += tl.dot(weights.to(q.dtype), v.to(q.dtype), input_precision="ieee")
    return highest, total, found


@triton.jit
def _join(
    parts,
    peaks,
    out,
    row,
    first_head,
    heads,
    first_part,
    busy,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Join the parts of a context for two heads, if there are two: their mean, weighted by their
    sums."""
    index, dims = tl.arange(0, 2), tl.arange(0, WIDTH)
    head, is_head = first_head + index, index < heads
    peak = tl.full([2], -1e30, tl.float32)
    total = tl.zeros([2], tl.float32)
    found = tl.zeros([2, WIDTH], tl.float32)
    for at in tl.range(0, busy, PARTS, num_stages=1):
        part = at + tl.arange(0, PARTS)
        spot = (first_part + part)[None, :] * HEADS + head[:, None]
        there = is_head[:, None] & (part < busy)[None, :]
        mass = tl.load(peaks + spot, mask=there, other=-1e30, cache_modifier=".cg")
        highest = tl.maximum(peak, tl.max(mass, 1))
        weights = tl.where(there, tl.exp2(mass - highest[:, None]), 0.0)
        mask = there[:, :, None] & (dims < DIM)[None, None, :]
        spot = parts + spot[:, :, None] * DIM + dims[None, None, :]
        mean = tl.load(spot, mask=mask, other=0.0, cache_modifier=".cg")
        shrink = tl.exp2(peak - highest)
        found = found * shrink[:, None] + tl.sum(mean * weights[:, :, None], 1)
        total = total * shrink + tl.sum(weights, 1)
        peak = highest
    joined = found / total[:, None]
    spot = out + (row.to(tl.int64) * HEADS + head)[:, None] * DIM + dims[None, :]
    tl.store(spot, joined.to(out.dtype.element_ty), mask=is_head[:, None] & (dims < DIM)[None, :])
