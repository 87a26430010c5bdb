"""The inputs of a recurrence in chunks: decays, and what the delta rule needs of each chunk alone.
All chunks are computed at the same time."""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.runner.cuda.states.recurrence import Decay, RecurrenceSizes, log_decay
from paceline.runner.cuda.states.rows import CHUNK, CudaStateRows

HEADS_AT_ONCE = 32  # whose decays one program computes
REGISTERS = 168  # of a thread that inverts: three programs share a multiprocessor


@dataclass(frozen=True, slots=True, eq=False)
class Chunks:
    """The inputs of a recurrence, in positions of the step.

    mixed     [positions, channels]; queries, keys and values behind the convolution
    total     [positions, heads]; log decays since the beginning of the chunk
    rate      [positions, heads]
    """

    rows: CudaStateRows
    sizes: RecurrenceSizes
    mixed: Tensor
    total: Tensor
    rate: Tensor

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
    total, rate = (
        torch.empty((len(mixed), sizes.heads), dtype=torch.float32, device=mixed.device)
        for _ in range(2)
    )
    _decays[rows.chunks, triton.cdiv(sizes.heads, HEADS_AT_ONCE)](
        *(inputs, total, rate),
        *decay.arguments,
        *(rows.chunk_begin, rows.chunk_end),
        STRIDE=inputs.stride(0),
        HEADS=sizes.heads,
        DECAY=sizes.decay,
        RATE=sizes.rate,
        CORRECTS=sizes.corrects,
        CHUNK=CHUNK,
        AT_ONCE=HEADS_AT_ONCE,
        num_warps=4,
        launch_pdl=True,
    )
    return Chunks(rows, sizes, mixed, total, rate)


def inverted(chunks: Chunks) -> Tensor:
    """(1 + A)^-1 of each chunk, a row for each position, [positions, heads, CHUNK]."""
    sizes = chunks.sizes
    inverse = chunks.empty(len(chunks.mixed), sizes.heads, CHUNK)
    _invert[chunks.rows.chunks, sizes.heads](
        *(chunks.mixed, chunks.total, chunks.rate, inverse),
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
    HEADS: tl.constexpr,
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
    head = tl.program_id(1) * AT_ONCE + tl.arange(0, AT_ONCE)[None, :]
    position = begin + tl.arange(0, CHUNK)[:, None]
    mask = (position < end) & (head < HEADS)
    x = inputs + position.to(tl.int64) * STRIDE + head
    found, rates = log_decay(
        tl.load(x + DECAY, mask=mask, other=0.0).to(tl.float32),
        tl.load(x + RATE, mask=mask, other=0.0).to(tl.float32),
        tl.load(speed + head, mask=head < HEADS, other=0.0),
        tl.load(bias + head, mask=head < HEADS, other=0.0),
        *(factor, least, most),
        CORRECTS,
    )
    at = position.to(tl.int64) * HEADS + head
    tl.store(total + at, tl.cumsum(found, 0), mask=mask)
    tl.store(rate + at, rates, mask=mask)


@triton.jit
def _invert(
    mixed,
    total,
    rate,
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
    line = mixed + (begin + i).to(tl.int64) * CHANNELS + KEY + head // SHARED * KEY_DIM
    key = tl.load(line + keys, mask=(begin + i < end) & (keys < KEY_DIM), other=0.0)
    at = each.to(tl.int64) * HEADS + head
    decay = tl.load(total + at, mask=each < end, other=0.0)
    rates = tl.load(rate + at, mask=each < end, other=0.0)
    # Lines behind the end of the chunk must be 0, since products take them too: they have no decay,
    # so what is between them and a position may be infinite.
    between = (i > j) & (begin + i < end)
    between = tl.where(between, decay[:, None] - decay[None, :], float("-inf"))
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
