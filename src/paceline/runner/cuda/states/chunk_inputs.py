"""The inputs of a recurrence in chunks: decays, and what the delta rule needs of each chunk alone.
All chunks are computed at the same time."""

from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.runner.cuda.states.recurrence import Decay, RecurrenceSizes, log_decay
from paceline.runner.cuda.states.rows import CHUNK, CudaStateRows

HEADS_AT_ONCE = 32  # whose decays one program computes
BLOCK = 16  # positions between which decays of keys are computed for each pair
REGISTERS = 168  # of a thread that inverts: three programs share a multiprocessor


@dataclass(frozen=True, slots=True, eq=False)
class Chunks:
    """The inputs of a recurrence, in positions of the step.

    mixed     [positions, channels]; queries, keys and values behind the convolution
    total     [positions, heads * decays]; log decays since the beginning of the chunk
    rate      [positions, heads]
    products  of decays by key: see `products_of`
    """

    rows: CudaStateRows
    sizes: RecurrenceSizes
    mixed: Tensor
    total: Tensor
    rate: Tensor
    products: tuple[Tensor, Tensor] | None = None

    @property
    def constants(self) -> dict[str, Any]:
        """As kernels take them."""
        is_exact = self.mixed.dtype == torch.float32
        return {
            **self.sizes.constants,
            "CHANNELS": self.mixed.shape[1],
            "CHUNK": CHUNK,
            "KEYS": self.sizes.keys,
            "PRECISION": "ieee" if is_exact else "tf32",
        }

    def empty(self, *shape: int) -> Tensor:
        return self.mixed.new_empty(shape)


def with_decays(
    inputs: Tensor, mixed: Tensor, rows: CudaStateRows, sizes: RecurrenceSizes, decay: Decay
) -> Chunks:
    columns = sizes.heads * sizes.decays
    total, rate = (
        torch.empty((len(mixed), size), dtype=torch.float32, device=mixed.device)
        for size in (columns, sizes.heads)
    )
    _decays[rows.chunks, triton.cdiv(columns, HEADS_AT_ONCE)](
        *(inputs, total, rate),
        *decay.arguments,
        *(rows.chunk_begin, rows.chunk_end),
        STRIDE=inputs.stride(0),
        COLUMNS=columns,
        EACH=sizes.decays,
        DECAY=sizes.decay,
        RATE=sizes.rate,
        CORRECTS=sizes.corrects,
        CHUNK=CHUNK,
        AT_ONCE=HEADS_AT_ONCE,
        num_warps=4,
        launch_pdl=True,
    )
    found = Chunks(rows, sizes, mixed, total, rate)
    return replace(found, products=products_of(found)) if sizes.by_key else found


def products_of(chunks: Chunks) -> tuple[Tensor, Tensor]:
    """Products of keys, and of queries, with all keys of the chunk up to the position, where each
    dimension has its decay between both: A, and B, of `chunked`, a row for each position,
    [positions, heads, CHUNK].

    Within a block of positions, decays are computed for all pairs. Before it, each position has its
    decays since the first position of the block, or until then, so no power is above 0.
    """
    sizes, rows = chunks.sizes, chunks.rows
    shape = len(chunks.mixed), sizes.heads, CHUNK
    of_keys, of_queries = chunks.rate.new_empty(shape), chunks.empty(*shape)
    _multiply[rows.chunks, sizes.heads, CHUNK // BLOCK](
        *(chunks.mixed, chunks.total, chunks.rate, of_keys, of_queries),
        *(rows.chunk_begin, rows.chunk_end),
        **chunks.constants,
        BLOCK=BLOCK,
        num_warps=8,
        launch_pdl=True,
    )
    return of_keys, of_queries


def inverted(chunks: Chunks) -> Tensor:
    """(1 + A)^-1 of each chunk, a row for each position, [positions, heads, CHUNK]."""
    sizes = chunks.sizes
    inverse = chunks.empty(len(chunks.mixed), sizes.heads, CHUNK)
    products = chunks.mixed if chunks.products is None else chunks.products[0]
    _invert[chunks.rows.chunks, sizes.heads](
        *(chunks.mixed, chunks.total, chunks.rate, products, inverse),
        *(chunks.rows.chunk_begin, chunks.rows.chunk_end),
        **chunks.constants,
        num_warps=4,
        maxnreg=REGISTERS,
        launch_pdl=True,
    )
    return inverse


# Kernels take pointers, strides and sizes one by one, and are written as one piece.
# ruff: noqa: PLR0913, PLR0917
# Parameters of kernels have no types.
# pyright: standard


@triton.jit
def _decays(
    inputs,
    total,
    rate,
    speed,
    bias,
    factor,
    least,
    most,
    chunk_begin,
    chunk_end,
    STRIDE: tl.constexpr,
    COLUMNS: tl.constexpr,
    EACH: tl.constexpr,
    DECAY: tl.constexpr,
    RATE: tl.constexpr,
    CORRECTS: tl.constexpr,
    CHUNK: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    begin, end = tl.load(chunk_begin + tl.program_id(0)), tl.load(chunk_end + tl.program_id(0))
    if begin >= end:
        return
    column = tl.program_id(1) * AT_ONCE + tl.arange(0, AT_ONCE)[None, :]
    head, position = column // EACH, begin + tl.arange(0, CHUNK)[:, None]
    mask = (position < end) & (column < COLUMNS)
    x, line = inputs + position.to(tl.int64) * STRIDE, position.to(tl.int64) * COLUMNS
    found, rates = log_decay(
        tl.load(x + DECAY + column, mask=mask, other=0.0).to(tl.float32),
        tl.load(x + RATE + head, mask=mask, other=0.0).to(tl.float32),
        tl.load(speed + head, mask=column < COLUMNS, other=0.0),
        tl.load(bias + column, mask=column < COLUMNS, other=0.0),
        *(factor, least, most),
        CORRECTS,
    )
    tl.store(total + line + column, tl.cumsum(found, 0), mask=mask)
    to = rate + line // EACH + head
    tl.store(to, rates, mask=mask & (column % EACH == 0))


@triton.jit
def _multiply(
    mixed,
    total,
    rate,
    of_keys,
    of_queries,
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
    BLOCK: tl.constexpr,
):
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    chunk, head, first = tl.program_id(0), tl.program_id(1), tl.program_id(2) * BLOCK
    begin, end = tl.load(chunk_begin + chunk), tl.load(chunk_end + chunk)
    if begin + first >= end:
        return
    kind = mixed.dtype.element_ty
    keys = tl.arange(0, KEYS)[None, :]
    own, j = (first + tl.arange(0, BLOCK))[:, None], tl.arange(0, CHUNK)[:, None]
    here, before = (begin + own < end) & (keys < KEY_DIM), (j < first) & (keys < KEY_DIM)
    group = mixed + head // SHARED * KEY_DIM + keys
    its = total + head * KEY_DIM + keys
    line = (begin + own).to(tl.int64)
    query = tl.load(group + QUERY + line * CHANNELS, mask=here, other=0.0).to(tl.float32)
    key = tl.load(group + KEY + line * CHANNELS, mask=here, other=0.0).to(tl.float32)
    decay = tl.load(its + line * (HEADS * KEY_DIM), mask=here, other=float("-inf"))
    # The block and all before it
    since = (begin + first).to(tl.int64)
    since = tl.load(its + since * (HEADS * KEY_DIM), mask=keys < KEY_DIM, other=0.0)
    line = (begin + j).to(tl.int64)
    earlier = tl.load(group + KEY + line * CHANNELS, mask=before, other=0.0).to(tl.float32)
    until = tl.load(its + line * (HEADS * KEY_DIM), mask=before, other=float("inf"))
    earlier = tl.trans((earlier * tl.exp(since - until)).to(kind))
    left = tl.exp(decay - since)
    scores = tl.dot((query * left).to(kind), earlier, input_precision=PRECISION)
    matrix = tl.dot((key * left).to(kind), earlier, input_precision=PRECISION)
    # Pairs within the block
    column, i = tl.arange(0, CHUNK)[None, :], first + tl.arange(0, BLOCK)
    for offset in range(BLOCK):
        other = tl.minimum(begin + first + offset, end - 1).to(tl.int64)
        with_key = tl.load(group + KEY + other * CHANNELS, mask=keys < KEY_DIM, other=0.0)
        at_key = tl.load(its + other * (HEADS * KEY_DIM), mask=keys < KEY_DIM, other=0.0)
        is_up_to = (own >= first + offset) & here
        both = tl.exp(tl.where(is_up_to, decay - at_key, float("-inf"))) * with_key.to(tl.float32)
        is_there = column == first + offset
        scores += tl.where(is_there, tl.sum(query * both, 1)[:, None], 0.0)
        of_key = tl.where(i > first + offset, tl.sum(key * both, 1), 0.0)
        matrix += tl.where(is_there, of_key[:, None], 0.0)
    at = (begin + i).to(tl.int64) * HEADS + head
    rates = tl.load(rate + at, mask=begin + i < end, other=0.0)
    to, mask = at[:, None] * CHUNK + column, (begin + i < end)[:, None]
    tl.store(of_keys + to, matrix * rates[:, None], mask=mask)
    tl.store(of_queries + to, scores.to(of_queries.dtype.element_ty), mask=mask)


@triton.jit
def _invert(
    mixed,
    total,
    rate,
    products,
    inverse,
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
):
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    begin, end = tl.load(chunk_begin + tl.program_id(0)), tl.load(chunk_end + tl.program_id(0))
    if begin >= end:
        return
    head = tl.program_id(1)
    i, j = tl.arange(0, CHUNK)[:, None], tl.arange(0, CHUNK)[None, :]
    keys, each = tl.arange(0, KEYS)[None, :], begin + tl.arange(0, CHUNK)
    at, here = each.to(tl.int64) * HEADS + head, begin + i < end
    if BY_KEY:
        matrix = tl.load(products + at[:, None] * CHUNK + j, mask=here, other=0.0)
    else:
        line = mixed + (begin + i).to(tl.int64) * CHANNELS + KEY + head // SHARED * KEY_DIM
        key = tl.load(line + keys, mask=here & (keys < KEY_DIM), other=0.0)
        decay = tl.load(total + at, mask=each < end, other=0.0)
        rates = tl.load(rate + at, mask=each < end, other=0.0)
        # Lines behind the end of the chunk must be 0, since products take them too: they have no
        # decay, so what is between them and a position may be infinite.
        between = tl.where((i > j) & here, decay[:, None] - decay[None, :], float("-inf"))
        matrix = tl.dot(key, tl.trans(key), input_precision=PRECISION)
        matrix *= rates[:, None] * tl.exp(between)
    # 1 + A is inverted block by block. From (1, 0; b, 1) with inverted blocks on the diagonal, each
    # level doubles their size. Numbers are at most 1, so float16 is as good as tf32 and faster.
    kind = tl.float32 if PRECISION == "ieee" else tl.float16
    found = tl.where(i == j, 1.0, tl.where(i // 2 == j // 2, -matrix, 0.0))
    matrix = matrix.to(kind)
    for level in tl.static_range(1, 16):
        if (1 << level) < CHUNK:
            corner = (i // (2 << level) == j // (2 << level)) & (
                i // (1 << level) != j // (1 << level)
            )
            block = tl.where(corner, matrix, 0.0).to(kind)
            right = tl.dot(block, found.to(kind), input_precision=PRECISION)
            found -= tl.dot(found.to(kind), right.to(kind), input_precision=PRECISION)
    to = inverse + ((begin + i).to(tl.int64) * HEADS + head) * CHUNK + j
    tl.store(to, found.to(inverse.dtype.element_ty), mask=begin + i < end)
