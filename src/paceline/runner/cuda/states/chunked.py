"""Linear recurrences in chunks: all rows of a step that have several positions.

In a chunk that begins with a state S, with D the sum of log decays since its beginning:

    new  = rate * value                                           or, by the delta rule,
    new  = (1 + A)^-1 (rate * (value - exp(D) * key @ S))
           A[i, j] = rate[i] * exp(D[i] - D[j]) * key[i] @ key[j] for j < i, 0 for others
    read = exp(D) * query @ S + B @ new
           B[i, j] = exp(D[i] - D[j]) * query[i] @ key[j] for j <= i, 0 for others
    S    = exp(D[last]) * S + sum over i of exp(D[last] - D[i]) * key[i] * new[i]

Where each dimension of a key has a decay, D is a vector, by which keys and queries are multiplied.
Only `carry`, which finds S and `new`, takes the chunks of a row one after another.
"""

import triton
import triton.language as tl
from torch import Tensor

from paceline.runner.cuda.states.chunk_inputs import Chunks, inverted, with_decays
from paceline.runner.cuda.states.recurrence import Decay, RecurrenceSizes
from paceline.runner.cuda.states.rows import CudaStateRows, begins

# Values of a head that one program carries from chunk to chunk: few, since each chunk waits for the
# one before, and the time is that of its instructions. With 64 values and 4 warps, these are four
# times as many.
CARRIED, CARRY_WARPS, CARRY_STAGES = 32, 8, 2
READ, READ_WARPS = 128, 4  # values of a head that one program reads


def advance(
    inputs: Tensor,
    mixed: Tensor,
    rows: CudaStateRows,
    states: Tensor,
    sizes: RecurrenceSizes,
    decay: Decay,
    out: Tensor,
) -> None:
    """Advance the states of all rows of several positions. Writes what they read, [positions, heads
    * value_dim]."""
    if not rows.chunks:
        return
    chunks = with_decays(inputs, mixed, rows, sizes, decay)
    read(chunks, carry(chunks, states, inverted(chunks) if sizes.corrects else None), decay, out)


def carry(chunks: Chunks, states: Tensor, inverse: Tensor | None) -> tuple[Tensor, Tensor]:
    """The state before each chunk, [chunks, heads, value_dim, key_dim], and what each position
    adds, [positions, heads, value_dim]."""
    rows, sizes = chunks.rows, chunks.sizes
    before = chunks.empty(rows.chunks, sizes.heads, sizes.value_dim, sizes.key_dim)
    new = chunks.empty(len(chunks.mixed), sizes.heads, sizes.value_dim)
    _carry[len(rows), sizes.heads, sizes.parts(CARRIED)](
        *(chunks.mixed, chunks.total, chunks.rate),
        chunks.mixed if inverse is None else inverse,
        *(new, before, states),
        *(rows.slot, rows.row_start, rows.context, rows.first_chunk),
        states.stride(0),
        **chunks.constants,
        VALUES=sizes.values(CARRIED),
        num_warps=CARRY_WARPS,
        num_stages=CARRY_STAGES,
        launch_pdl=True,
    )
    return before, new


def read(chunks: Chunks, carried: tuple[Tensor, Tensor], decay: Decay, out: Tensor) -> None:
    """What all positions read, from what `carry` found."""
    sizes, (before, new) = chunks.sizes, carried
    _read[chunks.rows.chunks, sizes.heads, sizes.parts(READ)](
        *(chunks.mixed, chunks.total, new, before, out),
        chunks.mixed if chunks.products is None else chunks.products[1],
        chunks.total if decay.skip is None else decay.skip,
        *(chunks.rows.chunk_begin, chunks.rows.chunk_end),
        **chunks.constants,
        SKIPS=decay.skip is not None,
        SCALE=sizes.scale,
        VALUES=sizes.values(READ),
        num_warps=READ_WARPS,
        launch_pdl=True,
    )


# Kernels take pointers, strides and sizes one by one, and are written as one piece.
# ruff: noqa: PLR0913, PLR0917
# Parameters of kernels have no types.
# pyright: standard


@triton.jit
def _with_decays(key, total, at, last, here, keys, KEY_DIM: tl.constexpr):
    """Keys with their decays since the beginning of a chunk, with those until its end, and all of
    the chunk."""
    cells = total + at[:, None] * KEY_DIM + keys
    decay = tl.load(cells, mask=here[:, None] & (keys < KEY_DIM), other=0.0)
    whole = tl.load(total + last * KEY_DIM + keys, mask=keys < KEY_DIM, other=0.0)
    early, late = key.to(tl.float32) * tl.exp(decay), key.to(tl.float32) * tl.exp(whole - decay)
    return early.to(key.dtype), late.to(key.dtype), whole


@triton.jit
def _carry(
    mixed,
    total,
    rate,
    inverse,
    new,
    before,
    states,
    slot,
    row_start,
    context,
    first_chunk,
    state_stride,
    HEADS: tl.constexpr,
    SHARED: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    QUERY: tl.constexpr,
    KEY: tl.constexpr,
    VALUE: tl.constexpr,
    DECAY: tl.constexpr,
    RATE: tl.constexpr,
    CORRECTS: tl.constexpr,
    BY_KEY: tl.constexpr,
    CHANNELS: tl.constexpr,
    CHUNK: tl.constexpr,
    KEYS: tl.constexpr,
    PRECISION: tl.constexpr,
    VALUES: tl.constexpr,
):
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    row, head = tl.program_id(0), tl.program_id(1)
    first, end = tl.load(row_start + row), tl.load(row_start + row + 1)
    chunk = tl.load(first_chunk + row)
    if tl.load(first_chunk + row + 1) == chunk:
        return
    # The state is transposed, so that results of products are left sides of the next ones: those
    # may stay in registers.
    kind = mixed.dtype.element_ty
    keys, i = tl.arange(0, KEYS)[None, :], tl.arange(0, CHUNK)
    values = (tl.program_id(2) * VALUES + tl.arange(0, VALUES))[:, None]
    inside = (keys < KEY_DIM) & (values < VALUE_DIM)
    own = states + tl.load(slot + row).to(tl.int64) * state_stride
    own += head * (KEY_DIM * VALUE_DIM) + keys * VALUE_DIM + values
    state = tl.load(own, mask=inside & (begins(row_start, context, row) == 0), other=0.0)
    for begin in range(first, end, CHUNK):
        here, position = begin + i < end, (begin + i).to(tl.int64)
        at = position * HEADS + head
        group = mixed + position[:, None] * CHANNELS + KEY + head // SHARED * KEY_DIM + keys
        key = tl.load(group, mask=here[:, None] & (keys < KEY_DIM), other=0.0)
        line = mixed + position[None, :] * CHANNELS + VALUE + head * VALUE_DIM + values
        mask = here[None, :] & (values < VALUE_DIM)
        found = tl.load(line, mask=mask, other=0.0).to(tl.float32)
        rates = tl.load(rate + at, mask=here, other=0.0)[None, :]
        last = (tl.minimum(begin + CHUNK, end) - 1).to(tl.int64) * HEADS + head
        decay = tl.load(total + at, mask=here & (not BY_KEY), other=0.0)
        early, late = key, key
        if BY_KEY:
            early, late, last = _with_decays(key, total, at, last, here, keys, KEY_DIM)
        else:
            last = tl.load(total + last)
        to = before + (chunk.to(tl.int64) * HEADS + head) * (KEY_DIM * VALUE_DIM)
        tl.store(to + values * KEY_DIM + keys, state.to(kind), mask=inside)
        if CORRECTS:
            line = inverse + at[None, :] * CHUNK + i[:, None]
            across = tl.load(line, mask=here[None, :], other=0.0)  # (1 + A)^-1, transposed
            seen = tl.dot(state.to(kind), tl.trans(early), input_precision=PRECISION)
            if not BY_KEY:
                seen *= tl.exp(decay)[None, :]
            found = (found - seen) * rates
            found = tl.dot(found.to(kind), across, input_precision=PRECISION)
        else:
            found *= rates
        tl.store(new + at[None, :] * VALUE_DIM + values, found.to(kind), mask=mask)
        state *= tl.exp(last)
        if not BY_KEY:
            found = tl.where(here[None, :], found * tl.exp(last - decay)[None, :], 0.0)
        state += tl.dot(found.to(kind), late, input_precision=PRECISION)
        chunk += 1
    tl.store(own, state, mask=inside)


@triton.jit
def _read(
    mixed,
    total,
    new,
    before,
    out,
    products,
    skip,
    chunk_begin,
    chunk_end,
    HEADS: tl.constexpr,
    SHARED: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    QUERY: tl.constexpr,
    KEY: tl.constexpr,
    VALUE: tl.constexpr,
    DECAY: tl.constexpr,
    RATE: tl.constexpr,
    CORRECTS: tl.constexpr,
    BY_KEY: tl.constexpr,
    CHANNELS: tl.constexpr,
    CHUNK: tl.constexpr,
    KEYS: tl.constexpr,
    PRECISION: tl.constexpr,
    SKIPS: tl.constexpr,
    SCALE: tl.constexpr,
    VALUES: tl.constexpr,
):
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    chunk, head = tl.program_id(0), tl.program_id(1)
    begin, end = tl.load(chunk_begin + chunk), tl.load(chunk_end + chunk)
    if begin >= end:
        return
    kind = mixed.dtype.element_ty
    i, keys = tl.arange(0, CHUNK), tl.arange(0, KEYS)
    own = tl.program_id(2) * VALUES + tl.arange(0, VALUES)
    values, across = own[None, :], own[:, None]
    here, position = begin + i < end, (begin + i).to(tl.int64)
    at = position * HEADS + head
    group = mixed + position[:, None] * CHANNELS + head // SHARED * KEY_DIM + keys[None, :]
    lines = here[:, None] & (keys < KEY_DIM)[None, :]
    query = tl.load(group + QUERY, mask=lines, other=0.0)
    cell = before + (chunk.to(tl.int64) * HEADS + head) * (KEY_DIM * VALUE_DIM)
    inside = (keys < KEY_DIM)[None, :] & (across < VALUE_DIM)
    state = tl.load(cell + across * KEY_DIM + keys[None, :], mask=inside, other=0.0)
    mask = here[:, None] & (values < VALUE_DIM)
    adds = tl.load(new + at[:, None] * VALUE_DIM + values, mask=mask, other=0.0)
    if BY_KEY:
        line = total + at[:, None] * KEY_DIM + keys[None, :]
        decay = tl.load(line, mask=lines, other=0.0)
        query = (query.to(tl.float32) * tl.exp(decay)).to(kind)
        scores = tl.load(products + at[:, None] * CHUNK + i[None, :], mask=here[:, None], other=0.0)
        found = tl.dot(query, tl.trans(state), input_precision=PRECISION)
    else:
        key = tl.load(group + KEY, mask=lines, other=0.0)
        decay = tl.load(total + at, mask=here, other=0.0)
        scores = tl.dot(query, tl.trans(key), input_precision=PRECISION)
        between = tl.where(i[:, None] >= i[None, :], decay[:, None] - decay[None, :], float("-inf"))
        scores = (scores * tl.exp(between)).to(kind)
        found = tl.dot(query, tl.trans(state), input_precision=PRECISION) * tl.exp(decay)[:, None]
    found += tl.dot(scores, adds, input_precision=PRECISION)
    if SKIPS:
        line = mixed + position[:, None] * CHANNELS + VALUE + head * VALUE_DIM + values
        found += tl.load(skip + head) * tl.load(line, mask=mask, other=0.0)
    to = out + at[:, None] * VALUE_DIM + values
    tl.store(to, (found * SCALE).to(out.dtype.element_ty), mask=mask)
