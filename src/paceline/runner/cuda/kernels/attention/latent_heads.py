"""Kernels of latent attention: the norm of latent vectors, rotations, and the write to the store.

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

from paceline.runner.kv_store import KVStore

MOST_HEADS = 16  # that one program rotates


@dataclass(frozen=True, slots=True, eq=False)
class LatentRotation:
    """The norm of latent vectors, and the rotation of the rest of queries and cells.

    cos_sin   [positions, 2, rope_dim / 2]; cosines and sines
    factor    [rank], of the norm
    floor     the smallest length that the norm divides by
    """

    cos_sin: Tensor
    factor: Tensor
    floor: float

    def store(self, new: Tensor, position: Tensor, cells: Tensor, kv: KVStore, layer: int) -> None:
        """Normalise latent vectors and rotate the rest of new cells [n, rank + rope_dim]; write
        them to the store."""
        (n, width), rank = new.shape, len(self.factor)
        half = (width - rank) // 2
        _store[(n,)](
            new,
            self.cos_sin,
            position,
            cells,
            kv.content,
            self.factor,
            self.floor,
            kv.content.stride(1) * kv.groups.index[layer],
            RANK=rank,
            PADDED=triton.next_power_of_2(rank),
            HALF=half,
            PADDED_HALF=triton.next_power_of_2(half),
            num_warps=4,
            launch_pdl=True,
        )

    def rotate_into(self, asked: Tensor, query: Tensor, position: Tensor) -> None:
        """Write the rotated rest of queries [n, heads, key_dim + rope_dim] to the end of `asked`
        [n, heads, rank + rope_dim]."""
        (n, heads, wide), dim, rank = asked.shape, query.shape[2], len(self.factor)
        half, chunk = (wide - rank) // 2, gcd(heads, MOST_HEADS)
        _rotate[(n, heads // chunk)](
            query,
            asked,
            self.cos_sin,
            position,
            HEADS=heads,
            CHUNK=chunk,
            FROM=dim,
            TO=wide,
            HALF=half,
            PADDED_HALF=triton.next_power_of_2(half),
            num_warps=2,
            launch_pdl=True,
        )


@triton.jit
def _store(
    new,
    cos_sin,
    position,
    cells,
    content,
    factor,
    floor,
    layer_at,
    RANK: tl.constexpr,
    PADDED: tl.constexpr,
    HALF: tl.constexpr,
    PADDED_HALF: tl.constexpr,
):
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    index = tl.program_id(0)
    line = new + index.to(tl.int64) * (RANK + 2 * HALF)
    cell = content + tl.load(cells + index) + layer_at
    columns, pair = tl.arange(0, PADDED), tl.arange(0, PADDED_HALF)
    mask, paired = columns < RANK, pair < HALF
    values = tl.load(line + columns, mask=mask, other=0.0).to(tl.float32)
    values = values / tl.sqrt(tl.sum(values * values, 0) + floor * floor)
    values *= tl.load(factor + columns, mask=mask, other=0.0).to(tl.float32)
    tl.store(cell + columns, values.to(content.dtype.element_ty), mask=mask)
    angle = cos_sin + tl.load(position + index).to(tl.int64) * 2 * HALF + pair
    cos = tl.load(angle, mask=paired, other=0.0)
    sin = tl.load(angle + HALF, mask=paired, other=0.0)
    low = tl.load(line + RANK + pair, mask=paired, other=0.0).to(tl.float32)
    high = tl.load(line + RANK + HALF + pair, mask=paired, other=0.0).to(tl.float32)
    kind = content.dtype.element_ty
    tl.store(cell + RANK + pair, (low * cos - high * sin).to(kind), mask=paired)
    tl.store(cell + RANK + HALF + pair, (high * cos + low * sin).to(kind), mask=paired)


@triton.jit
def _rotate(
    query,
    asked,
    cos_sin,
    position,
    HEADS: tl.constexpr,
    CHUNK: tl.constexpr,
    FROM: tl.constexpr,
    TO: tl.constexpr,
    HALF: tl.constexpr,
    PADDED_HALF: tl.constexpr,
):
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    index = tl.program_id(0)
    head = index.to(tl.int64) * HEADS + tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    pair = tl.arange(0, PADDED_HALF)
    paired = pair < HALF
    angle = cos_sin + tl.load(position + index).to(tl.int64) * 2 * HALF + pair
    cos = tl.load(angle, mask=paired, other=0.0)[None, :]
    sin = tl.load(angle + HALF, mask=paired, other=0.0)[None, :]
    mask = (head >= 0)[:, None] & paired[None, :]
    source = query + (head * FROM + FROM - 2 * HALF)[:, None] + pair[None, :]
    low = tl.load(source, mask=mask, other=0.0).to(tl.float32)
    high = tl.load(source + HALF, mask=mask, other=0.0).to(tl.float32)
    spot = asked + (head * TO + TO - 2 * HALF)[:, None] + pair[None, :]
    tl.store(spot, (low * cos - high * sin).to(asked.dtype.element_ty), mask=mask)
    tl.store(spot + HALF, (high * cos + low * sin).to(asked.dtype.element_ty), mask=mask)
