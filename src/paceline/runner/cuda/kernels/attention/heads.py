"""Kernels of heads around attention: their norms, the rotation, the write to the store, and gates.

See `kernels.layers` for when a kernel may start.
"""

# Kernels take pointers, strides and sizes one by one, and are written as one piece.
# ruff: noqa: PLR0913, PLR0917
# Parameters of kernels have no types.
# pyright: standard

from dataclasses import dataclass
from math import gcd

import triton
import triton.language as tl
from torch import Tensor

from paceline.runner.cuda.kernels.layers import WIDE, DeferredNorm, row_length
from paceline.runner.kv_store import KVStore
from paceline.runner.models.rope import QueryGrowth

NO_GROWTH = QueryGrowth(0.0, 1, 0)
MOST_HEADS = 8  # that one program rotates
COLUMNS = 1024  # that one program multiplies by gates


@dataclass(frozen=True, slots=True, eq=False)
class HeadRotation:
    """The norms of heads in a layer, and the rotation of queries and keys.

    cos_sin         [positions, 2, head_dim / 2]; cosines and sines
    factor          [heads + kv_heads, head_dim], of the norm of queries and keys; None: there is
                    none
    floor           the smallest length that this norm divides by
    is_by_row       `cos_sin` has the positions of this step, in their order
    rotates_first   the rotation is before this norm
    value_floor     the smallest length that the norm of values divides by; None: there is none
    growth          of queries with their position; None: there is none
    """

    cos_sin: Tensor
    factor: Tensor | None
    floor: float
    is_by_row: bool = False
    rotates_first: bool = False
    value_floor: float | None = None
    growth: QueryGrowth | None = None

    @property
    def constants(self) -> dict[str, float]:
        """What kernels are compiled for."""
        growth = self.growth or NO_GROWTH
        return {
            "GROWTH": growth.factor,
            "GROWTH_LENGTH": growth.length,
            "GROWTH_OFFSET": growth.offset,
            "NORMED": self.factor is not None,
            "ROTATES_FIRST": self.rotates_first,
            "VALUE_NORMED": self.value_floor is not None,
            "BY_ROW": self.is_by_row,
        }


def rotate_and_store(
    qkv: Tensor,
    rotation: HeadRotation,
    late: DeferredNorm,
    position: Tensor,
    cells: Tensor,
    kv: KVStore,
    layer: int,
) -> None:
    """Normalise and rotate queries, in place, and keys; write keys and values to the store.

    `qkv` is [n, heads + 2 * kv_heads, head_dim]; its rows need not be adjacent.
    """
    first = kv.content.stride(1) * kv.groups.index[layer]
    store = cells, kv.content, first
    _launch(qkv, rotation, late, position, (kv.heads[layer].kv_heads, store))


def rotate(query: Tensor, rotation: HeadRotation, late: DeferredNorm, position: Tensor) -> None:
    """Normalise and rotate queries [n, heads, head_dim] in place."""
    _launch(query, rotation, late, position, (0, (position, query, 0)))


def _launch(
    qkv: Tensor,
    rotation: HeadRotation,
    late: DeferredNorm,
    position: Tensor,
    target: tuple[int, tuple[Tensor, Tensor, int]],
) -> None:
    (n, total, dim), (kv_heads, store) = qkv.shape, target
    heads = total - 2 * kv_heads
    chunk = gcd(heads, kv_heads, MOST_HEADS)
    _rotate_and_store[(n, total // chunk)](
        qkv,
        rotation.cos_sin,
        position,
        *store,
        qkv if rotation.factor is None else rotation.factor,
        rotation.floor,
        rotation.value_floor or 0.0,
        late.stream,
        late.floor,
        qkv.stride(0),
        HEADS=heads,
        KV_HEADS=kv_heads,
        CHUNK=chunk,
        DIM=dim,
        HALF=dim // 2,
        PADDED=triton.next_power_of_2(dim // 2),
        STREAM=late.width,
        STREAM_PADDED=late.padded_width,
        num_warps=2 if late.width <= WIDE else 4,
        launch_pdl=True,
        **rotation.constants,
    )


@triton.jit
def grown(position, FACTOR: tl.constexpr, LENGTH: tl.constexpr, OFFSET: tl.constexpr):
    """The factor of the query at a position: see `QueryGrowth`."""
    return 1.0 + FACTOR * tl.log(1.0 + ((position + OFFSET) // LENGTH).to(tl.float32))


@triton.jit
def _rotate_and_store(
    qkv,
    cos_sin,
    position,
    cells,
    content,
    layer_at,
    factor,
    floor,
    value_floor,
    stream,
    stream_floor,
    row_stride,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    CHUNK: tl.constexpr,
    DIM: tl.constexpr,
    HALF: tl.constexpr,
    PADDED: tl.constexpr,
    NORMED: tl.constexpr,
    ROTATES_FIRST: tl.constexpr,
    VALUE_NORMED: tl.constexpr,
    BY_ROW: tl.constexpr,
    GROWTH: tl.constexpr,
    GROWTH_LENGTH: tl.constexpr,
    GROWTH_OFFSET: tl.constexpr,
    STREAM: tl.constexpr,
    STREAM_PADDED: tl.constexpr,
):
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    index, chunk = tl.program_id(0), tl.program_id(1)
    first = chunk * CHUNK
    lines, columns = tl.arange(0, CHUNK), tl.arange(0, PADDED)
    head = first + lines
    mask = (lines < CHUNK)[:, None] & (columns < HALF)[None, :]
    here = index.to(tl.int64) * row_stride
    spot = head[:, None] * DIM + columns[None, :]
    low = tl.load(qkv + here + spot, mask=mask, other=0.0).to(tl.float32)
    high = tl.load(qkv + here + spot + HALF, mask=mask, other=0.0).to(tl.float32)
    if STREAM > 0:
        size = row_length(stream, stream_floor, index.to(tl.int64), STREAM, STREAM_PADDED)
        low, high = low / size, high / size
    if first < HEADS + KV_HEADS:
        if BY_ROW:
            at = index
        else:
            at = tl.load(position + index)
        angle = cos_sin + at.to(tl.int64) * DIM + columns
        cos = tl.load(angle, mask=columns < HALF, other=0.0)[None, :]
        sin = tl.load(angle + HALF, mask=columns < HALF, other=0.0)[None, :]
        if ROTATES_FIRST:
            low, high = low * cos - high * sin, high * cos + low * sin
        if NORMED:
            squares = tl.sum(low * low + high * high, 1)
            length = tl.sqrt(squares + floor * floor)[:, None]
            low = low / length * tl.load(factor + spot, mask=mask, other=0.0).to(tl.float32)
            high = (
                high / length * tl.load(factor + spot + HALF, mask=mask, other=0.0).to(tl.float32)
            )
        if not ROTATES_FIRST:
            low, high = low * cos - high * sin, high * cos + low * sin
    elif VALUE_NORMED:
        squares = tl.sum(low * low + high * high, 1)
        length = tl.sqrt((squares + value_floor * value_floor) / DIM)[:, None]
        low, high = low / length, high / length
    if first < HEADS:
        if GROWTH > 0:
            size = grown(tl.load(position + index), GROWTH, GROWTH_LENGTH, GROWTH_OFFSET)
            low, high = low * size, high * size
        tl.store(qkv + here + spot, low.to(qkv.dtype.element_ty), mask=mask)
        tl.store(qkv + here + spot + HALF, high.to(qkv.dtype.element_ty), mask=mask)
    else:
        cell = content + tl.load(cells + index) + layer_at - HEADS * DIM
        tl.store(cell + spot, low.to(content.dtype.element_ty), mask=mask)
        tl.store(cell + spot + HALF, high.to(content.dtype.element_ty), mask=mask)


@dataclass(frozen=True, slots=True, eq=False)
class WholeNorms:
    """A norm over all heads of queries, and one over all heads of keys."""

    factor: Tensor  # [heads + kv_heads, head_dim]
    floor: float  # the smallest length that the norm of queries divides by
    key_floor: float

    def apply_to(self, qkv: Tensor, heads: int, late: DeferredNorm) -> None:
        """Normalise queries and keys of [n, heads and more, head_dim] in place. The next kernel
        divides them by the length of their row, so they are multiplied by it."""
        dim, keys = self.factor.shape[1], len(self.factor) - heads
        _normalize_whole[(len(qkv), 2)](
            qkv,
            self.factor,
            self.floor,
            self.key_floor,
            late.stream,
            late.floor,
            qkv.stride(0),
            QUERIES=heads * dim,
            KEYS=keys * dim,
            PADDED=triton.next_power_of_2(max(heads, keys) * dim),
            STREAM=late.width,
            STREAM_PADDED=late.padded_width,
            num_warps=8,
            launch_pdl=True,
        )


@triton.jit
def _normalize_whole(
    qkv,
    factor,
    floor,
    key_floor,
    stream,
    stream_floor,
    row_stride,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    PADDED: tl.constexpr,
    STREAM: tl.constexpr,
    STREAM_PADDED: tl.constexpr,
):
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    index, is_key = tl.program_id(0).to(tl.int64), tl.program_id(1) == 1
    first, size = tl.where(is_key, QUERIES, 0), tl.where(is_key, KEYS, QUERIES)
    least = tl.where(is_key, key_floor, floor)
    columns = tl.arange(0, PADDED)
    mask = columns < size
    spot = qkv + index * row_stride + first + columns
    values = tl.load(spot, mask=mask, other=0.0).to(tl.float32)
    row = 1.0
    if STREAM > 0:
        row = row_length(stream, stream_floor, index, STREAM, STREAM_PADDED)
    length = tl.sqrt(tl.sum(values * values, 0) + least * least * row * row)
    scaled = values / length * row
    scaled *= tl.load(factor + first + columns, mask=mask, other=0.0).to(tl.float32)
    tl.store(spot, scaled.to(qkv.dtype.element_ty), mask=mask)


def gate_heads(seen: Tensor, gates: Tensor, late: DeferredNorm) -> None:
    """seen *= sigmoid(gates), each [n, heads, head_dim]; the rows of gates need not be
    adjacent."""
    n, width = len(seen), seen[0].numel()
    columns = min(triton.next_power_of_2(width), COLUMNS)
    _gate[(n, triton.cdiv(width, columns))](
        seen,
        gates,
        late.stream,
        late.floor,
        gates.stride(0),
        WIDTH=width,
        PADDED=columns,
        STREAM=late.width,
        STREAM_PADDED=late.padded_width,
        num_warps=4,
        launch_pdl=True,
    )


@triton.jit
def _gate(
    seen,
    gates,
    stream,
    floor,
    row_stride,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    STREAM: tl.constexpr,
    STREAM_PADDED: tl.constexpr,
):
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * PADDED + tl.arange(0, PADDED)
    mask = columns < WIDTH
    gate = tl.load(gates + row * row_stride + columns, mask=mask, other=0.0).to(tl.float32)
    if STREAM > 0:
        gate = gate / row_length(stream, floor, row, STREAM, STREAM_PADDED)
    spot = seen + row * WIDTH + columns
    found = tl.load(spot, mask=mask, other=0.0).to(tl.float32) / (1.0 + tl.exp(-gate))
    tl.store(spot, found.to(seen.dtype.element_ty), mask=mask)
