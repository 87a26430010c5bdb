"""Fused kernels of a decoder layer: norms, rotation, activation, and the write to the store.

Every kernel may start before the previous one has ended (programmatic dependent launch), and reads
only weights until `gdc_wait` returns. There are two exceptions. Attention to new positions follows
an ordered linear and may read everything older than that linear. Attention of single rows beside
longer rows starts after the kernel of the longer rows has waited.
"""

from dataclasses import dataclass
from math import gcd

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.runner.kv_store import KVStore

LOGITS = 1024  # of a program


def cap_logits(logits: Tensor, cap: float) -> None:
    """Cap logits in place."""
    size = logits.numel()
    _cap_logits[(triton.cdiv(size, LOGITS),)](
        logits, size, CAP=cap, LOGITS=LOGITS, num_warps=4, launch_pdl=True
    )


@triton.jit
def capped(scores, CAP: tl.constexpr):
    """Cap scores that are logarithms to base 2, as kernels of attention have them."""
    # tanh(x) is (1 - e) / (1 + e) of e = exp(-2x), which stays finite for x >= 0.
    power = tl.exp2(tl.abs(scores) * (-2.0 / CAP))
    found = (CAP * 1.4426950408889634) * (1.0 - power) / (1.0 + power)
    return tl.where(scores < 0, -found, found)


@triton.jit
def _cap_logits(logits, size, CAP: tl.constexpr, LOGITS: tl.constexpr):
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    at = tl.program_id(0).to(tl.int64) * LOGITS + tl.arange(0, LOGITS)
    values = tl.load(logits + at, mask=at < size, other=0.0).to(tl.float32)
    found = capped(values * 1.4426950408889634, CAP) * 0.6931471805599453
    tl.store(logits + at, found.to(logits.dtype.element_ty), mask=at < size)


# Kernels take pointers, strides and sizes one by one, and are written as one piece.
# ruff: noqa: PLR0913, PLR0917
# Parameters of kernels have no types.
# pyright: standard


MOST_HEADS = 8  # that one program rotates
WIDE = 2048  # from so many inputs on, a row has more threads


def normalized(x: Tensor, floor: float, factor: Tensor | None = None) -> Tensor:
    """x [n, width] divided by its length, or by `floor` if that is larger, times a factor
    [width]."""
    out = torch.empty_like(x)
    width = x.shape[1]
    warps = 8 if width > WIDE else 4
    sizes = {"WIDTH": width, "PADDED": _power(width), "FACTORED": factor is not None}
    given = x if factor is None else factor
    _normalize[(len(x),)](x, given, out, floor, **sizes, num_warps=warps, launch_pdl=True)
    return out


def add_normalized(total: Tensor, x: Tensor, factor: Tensor, floor: float) -> None:
    """total += x / |x| * factor, each [n, width]."""
    width = x.shape[1]
    sizes = {"WIDTH": width, "PADDED": _power(width)}
    _add_normalized[(len(x),)](total, x, factor, floor, **sizes, num_warps=4, launch_pdl=True)


@dataclass(frozen=True, slots=True, eq=False)
class DeferredNorm:
    """A norm that is applied after the linear that follows it.

    GEMMs are linear, so their outputs can be divided by the lengths of the input rows, which are
    `stream` [n, width]. A width of 0 means that the norm was applied before the linear.
    """

    stream: Tensor
    floor: float
    width: int

    @property
    def padded_width(self) -> int:
        return _power(max(self.width, 1))


def divide(x: Tensor, late: DeferredNorm) -> None:
    """Divide rows [n, width] by what a norm leaves to do, in place."""
    _divide[(len(x), triton.cdiv(x.shape[1], 2 * WIDE))](
        x,
        late.stream,
        late.floor,
        WIDTH=x.shape[1],
        PADDED=2 * WIDE,
        STREAM=late.width,
        STREAM_PADDED=late.padded_width,
        num_warps=4,
        launch_pdl=True,
    )


def gated(gate_up: Tensor, is_silu: bool, late: DeferredNorm) -> Tensor:
    """Return act(gate) * up of [n, 2 * width]."""
    n, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((n, width), dtype=gate_up.dtype, device=gate_up.device)
    columns = min(_power(width), WIDE if late.width <= WIDE else 2 * WIDE)
    _gated[(n, triton.cdiv(width, columns))](
        gate_up,
        out,
        late.stream,
        late.floor,
        WIDTH=width,
        PADDED=columns,
        SILU=is_silu,
        STREAM=late.width,
        STREAM_PADDED=late.padded_width,
        num_warps=4,
        launch_pdl=True,
    )
    return out


@dataclass(frozen=True, slots=True, eq=False)
class HeadRotation:
    """The norm and rotation of queries and keys in a layer."""

    cos_sin: Tensor  # [positions, 2, head_dim / 2]; cosines and sines
    factor: Tensor | None  # [heads + kv_heads, head_dim]; of a norm, if there is one
    floor: float  # the smallest length that the norm divides by
    is_by_row: bool = False  # `cos_sin` has the positions of this step, in their order


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

    `qkv` is [n, heads + 2 * kv_heads, head_dim].
    """
    n, total, dim = qkv.shape
    heads = total - 2 * kv.kv_heads
    chunk = gcd(gcd(heads, kv.kv_heads), MOST_HEADS)
    _rotate_and_store[(n, total // chunk)](
        qkv,
        rotation.cos_sin,
        position,
        cells,
        kv.content,
        qkv if rotation.factor is None else rotation.factor,
        rotation.floor,
        late.stream,
        late.floor,
        kv.content.stride(1) * kv.groups.index[layer],
        HEADS=heads,
        KV_HEADS=kv.kv_heads,
        CHUNK=chunk,
        DIM=dim,
        HALF=dim // 2,
        PADDED=_power(dim // 2),
        NORMED=rotation.factor is not None,
        BY_ROW=rotation.is_by_row,
        STREAM=late.width,
        STREAM_PADDED=late.padded_width,
        num_warps=2 if late.width <= WIDE else 4,
        launch_pdl=True,
    )


def _power(width: int) -> int:
    return triton.next_power_of_2(width)


@triton.jit
def _normalize(
    x, factor, out, floor, WIDTH: tl.constexpr, PADDED: tl.constexpr, FACTORED: tl.constexpr
):
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64) * WIDTH
    columns = tl.arange(0, PADDED)
    values = tl.load(x + row + columns, mask=columns < WIDTH, other=0.0).to(tl.float32)
    values = values / tl.sqrt(tl.sum(values * values, 0) + floor * floor)
    if FACTORED:
        values *= tl.load(factor + columns, mask=columns < WIDTH, other=0.0)
    tl.store(out + row + columns, values.to(out.dtype.element_ty), mask=columns < WIDTH)


@triton.jit
def _add_normalized(total, x, factor, floor, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64) * WIDTH
    columns = tl.arange(0, PADDED)
    mask = columns < WIDTH
    values = tl.load(x + row + columns, mask=mask, other=0.0).to(tl.float32)
    length = tl.sqrt(tl.sum(values * values, 0) + floor * floor)
    scaled = values / length * tl.load(factor + columns, mask=mask, other=0.0).to(tl.float32)
    before = tl.load(total + row + columns, mask=mask, other=0.0).to(tl.float32)
    tl.store(total + row + columns, (before + scaled).to(total.dtype.element_ty), mask=mask)


@triton.jit
def _length(stream, floor, row, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    columns = tl.arange(0, PADDED)
    values = tl.load(stream + row * WIDTH + columns, mask=columns < WIDTH, other=0.0)
    values = values.to(tl.float32)
    return tl.sqrt(tl.sum(values * values, 0) + floor * floor)


@triton.jit
def _divide(
    x,
    stream,
    floor,
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
    values = tl.load(x + row * WIDTH + columns, mask=mask, other=0.0).to(tl.float32)
    values /= _length(stream, floor, row, STREAM, STREAM_PADDED)
    tl.store(x + row * WIDTH + columns, values.to(x.dtype.element_ty), mask=mask)


@triton.jit
def activated(gate, SILU: tl.constexpr):
    if SILU:
        active = gate / (1.0 + tl.exp(-gate))
    else:
        inner = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
        active = gate / (1.0 + tl.exp(-2.0 * inner))  # (1 + tanh) / 2 is a sigmoid
    return active


@triton.jit
def _gated(
    gate_up,
    out,
    stream,
    floor,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    SILU: tl.constexpr,
    STREAM: tl.constexpr,
    STREAM_PADDED: tl.constexpr,
):
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * PADDED + tl.arange(0, PADDED)
    mask = columns < WIDTH
    gate = tl.load(gate_up + row * 2 * WIDTH + columns, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * WIDTH + WIDTH + columns, mask=mask, other=0.0).to(tl.float32)
    if STREAM > 0:
        size = _length(stream, floor, row, STREAM, STREAM_PADDED)
        gate, up = gate / size, up / size
    active = activated(gate, SILU)
    tl.store(out + row * WIDTH + columns, (active * up).to(out.dtype.element_ty), mask=mask)


@triton.jit
def _rotate_and_store(
    qkv,
    cos_sin,
    position,
    cells,
    content,
    factor,
    floor,
    stream,
    stream_floor,
    layer_at,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    CHUNK: tl.constexpr,
    DIM: tl.constexpr,
    HALF: tl.constexpr,
    PADDED: tl.constexpr,
    NORMED: tl.constexpr,
    BY_ROW: tl.constexpr,
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
    here = index.to(tl.int64) * (HEADS + 2 * KV_HEADS) * DIM
    spot = head[:, None] * DIM + columns[None, :]
    low = tl.load(qkv + here + spot, mask=mask, other=0.0).to(tl.float32)
    high = tl.load(qkv + here + spot + HALF, mask=mask, other=0.0).to(tl.float32)
    if STREAM > 0:
        size = _length(stream, stream_floor, index.to(tl.int64), STREAM, STREAM_PADDED)
        low, high = low / size, high / size
    if first < HEADS + KV_HEADS:
        if NORMED:
            squares = tl.sum(low * low + high * high, 1)
            length = tl.sqrt(squares + floor * floor)[:, None]
            low = low / length * tl.load(factor + spot, mask=mask, other=0.0).to(tl.float32)
            high = (
                high / length * tl.load(factor + spot + HALF, mask=mask, other=0.0).to(tl.float32)
            )
        if BY_ROW:
            at = index
        else:
            at = tl.load(position + index)
        angle = cos_sin + at.to(tl.int64) * DIM + columns
        cos = tl.load(angle, mask=columns < HALF, other=0.0)[None, :]
        sin = tl.load(angle + HALF, mask=columns < HALF, other=0.0)[None, :]
        low, high = low * cos - high * sin, high * cos + low * sin
    if first < HEADS:
        tl.store(qkv + here + spot, low.to(qkv.dtype.element_ty), mask=mask)
        tl.store(qkv + here + spot + HALF, high.to(qkv.dtype.element_ty), mask=mask)
    else:
        cell = content + tl.load(cells + index) + layer_at - HEADS * DIM
        tl.store(cell + spot, low.to(content.dtype.element_ty), mask=mask)
        tl.store(cell + spot + HALF, high.to(content.dtype.element_ty), mask=mask)
