"""Attention of rows with more than one position on tensor cores, in CUDA C++.

The kernel is `prefill_attention.cu`. This module cuts rows into tiles and launches it.
"""

# Kernels take pointers, strides and sizes one by one, and are written as one piece.
# ruff: noqa: PLR0913, PLR0917
# Parameters of kernels have no types.
# pyright: standard

from functools import cache
from math import gcd
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.runner.attention_backend import Queries
from paceline.runner.batch import Batch
from paceline.runner.cuda.kernels.nvrtc import (
    ALIGNED,
    SHARED_BYTES,
    Kernel,
    TensorMap,
    can_compile,
    multiply,
    source_of,
)
from paceline.runner.kv_store import KVStore
from paceline.runner.models.config import HeadShape

DIM, PAIRS, KEYS = 128, 128, 128  # as in the kernel
HALF, LINES = 64, 8  # of a swizzled line, and lines that are swizzled together
LEAST_CHUNK = 16  # cells
MOST_SLOTS, SLOT_BYTES = 6, KEYS * DIM * 2
MOST_TILES = 4096  # of a step


class TileList:
    """Tiles of pairs of a position and a query, those with the most keys first."""

    def __init__(self, batch: Batch, bounds: Tensor, rows: int, group: int) -> None:
        """Tiles of at most `rows` rows from `bounds[0]` up to `bounds[1]`, with `group` queries for
        a position and a head of keys. `lay_out` fills the list."""
        self._rows, self._group = (batch.row_start, batch.context, bounds), group
        self.room = triton.next_power_of_2(batch.positions * group // PAIRS + rows)
        on: dict[str, Any] = {"dtype": torch.int32, "device": bounds.device}
        # First pair in the batch, the same pair in the sequence, number of pairs, row.
        self.tiles = torch.zeros((self.room, 4), **on)
        self.count = torch.zeros(1, **on)

    def lay_out(self) -> None:
        sizes = {"GROUP": self._group, "PAIRS": PAIRS, "ROOM": self.room}
        sizes |= {"HALVINGS": self.room.bit_length(), "num_warps": 8}
        work = torch.empty(self.room, dtype=torch.int32, device=self.tiles.device)
        _weigh[(1,)](*self._rows, work, self.count, KEYS=KEYS, **sizes)
        _list[(1,)](*self._rows, work.argsort(descending=True), self.tiles, **sizes)


class PrefillAttention:
    """Attention of tiles of queries, for all layers of a step."""

    def __init__(self, batch: Batch, kv: KVStore, bounds: Tensor, rows: int, heads: int) -> None:
        """For at most `rows` rows, from `bounds[0]` up to `bounds[1]`."""
        self._tables, self._kv = batch.block_table.unbind(), kv
        self._group = heads // kv.kv_heads
        self._tiles = TileList(batch, bounds, rows, self._group)
        processors = torch.cuda.get_device_properties(kv.content.device).multi_processor_count
        self._programs = min(processors, self._tiles.room * kv.kv_heads)
        runs, block = kv.blocks * kv.groups.layers_per_block, kv.block_size
        lines = kv.content.view(runs, block // LINES, LINES, 2 * kv.kv_heads * DIM // HALF, HALF)
        box = (1, gcd(block, KEYS) // LINES, DIM // HALF, LINES, HALF)
        self._map = TensorMap(lines.transpose(2, 3), box)
        # Units that were drawn, and programs that have ended.
        self._turns = torch.zeros(2, dtype=torch.int32, device=kv.content.device)

    @staticmethod
    def can(kv: KVStore, queries: Queries, positions: int) -> bool:
        """Whether the kernel supports such a store and so many positions of such queries."""
        group = queries.heads // kv.kv_heads
        is_shaped = (
            set(kv.heads) == {HeadShape(kv.kv_heads, DIM)} and kv.block_size % LEAST_CHUNK == 0
        )
        is_shaped = is_shaped and group <= PAIRS and 2 * positions * group <= PAIRS * MOST_TILES
        is_typed = kv.dtype == queries.dtype == torch.bfloat16
        is_plain = not (queries.is_capped or queries.has_sinks or queries.has_chunks)
        return is_shaped and is_typed and is_plain and can_compile(kv.content.device)

    def lay_out(self) -> None:
        self._tiles.lay_out()

    def attend_into(
        self,
        out: Tensor,
        query: Tensor,
        layer: int,
        window: int | None,
        scale: float,
        cap: float | None,
        sinks: Tensor | None,
    ) -> None:
        """Attend with queries [positions, heads, head_dim], which need not be contiguous."""
        assert cap is None, "the kernel does not cap scores"
        assert sinks is None, "the kernel has no sinks"
        kv, tiles, groups = self._kv, self._tiles, self._kv.groups
        table, index = self._tables[groups.group[layer]], groups.index[layer]
        halves = query.view(*query.shape[:2], DIM // HALF, HALF)
        asked = TensorMap(halves, (_positions(self._group), self._group, 1, HALF))
        arguments = (
            *(self._map, asked, tiles.tiles, tiles.count, self._turns, table, out),
            *(table.stride(0), groups.layers_per_block, index, window or 0, scale),
        )
        _kernel(kv.kv_heads, self._group, kv.block_size).launch(self._programs, arguments)


@cache
def _kernel(kv_heads: int, group: int, block_size: int) -> Kernel:
    shared = ALIGNED + _query_bytes(group) + _slots(group) * SLOT_BYTES
    return Kernel(source_for(kv_heads, group, block_size), "tiled", 384, shared)


def source_for(kv_heads: int, group: int, block_size: int) -> str:
    sizes = {"KV_HEADS": kv_heads, "GROUP": group, "POSITIONS": _positions(group)}
    sizes |= {"BLOCK": block_size, "CHUNK": gcd(block_size, KEYS), "SLOTS": _slots(group)}
    score = multiply("score", KEYS, is_held=True)
    weigh = multiply("weigh", DIM, is_held=True, is_transposed=True)
    return source_of("prefill_attention", sizes, score + weigh)


def _positions(group: int) -> int:
    """Positions that the pairs of a tile have, at most: a tile may begin within a position."""
    return -(-PAIRS // group) + (PAIRS % group > 1)


def _query_bytes(group: int) -> int:
    """Of all queries of these positions."""
    return -(-_positions(group) * group // LINES) * LINES * DIM * 2


def _slots(group: int) -> int:
    """Tiles of keys or values that fit beside the queries."""
    return min(MOST_SLOTS, (SHARED_BYTES - ALIGNED - _query_bytes(group)) // SLOT_BYTES)


@triton.jit
def _weigh(
    row_start,
    context,
    bounds,
    work,
    count,
    GROUP: tl.constexpr,
    PAIRS: tl.constexpr,
    KEYS: tl.constexpr,
    ROOM: tl.constexpr,
    HALVINGS: tl.constexpr,
):
    """Tiles of keys of the tile at each index, 0 if there is no tile; and the number of tiles."""
    index = tl.arange(0, ROOM)
    _, _, some, lowest = _tile_at(index, row_start, context, bounds, GROUP, PAIRS, HALVINGS)
    tl.store(work + index, tl.where(some > 0, tl.cdiv(tl.cdiv(lowest + some, GROUP), KEYS), 0))
    tl.store(count, tl.sum((some > 0).to(tl.int32), 0))


@triton.jit
def _list(
    row_start,
    context,
    bounds,
    order,
    tiles,
    GROUP: tl.constexpr,
    PAIRS: tl.constexpr,
    ROOM: tl.constexpr,
    HALVINGS: tl.constexpr,
):
    """Write the tiles in this order."""
    index = tl.arange(0, ROOM)
    tile = tl.load(order + index).to(tl.int32)
    row, start, some, lowest = _tile_at(tile, row_start, context, bounds, GROUP, PAIRS, HALVINGS)
    tl.store(tiles + index * 4, start)
    tl.store(tiles + index * 4 + 1, lowest)
    tl.store(tiles + index * 4 + 2, some)
    tl.store(tiles + index * 4 + 3, row)


@triton.jit
def _tile_at(
    tile,
    row_start,
    context,
    bounds,
    GROUP: tl.constexpr,
    PAIRS: tl.constexpr,
    HALVINGS: tl.constexpr,
):
    """Row, first pair in the batch, number of pairs, and first pair in the sequence.

    The first tile of a row is at index `pairs before the row // PAIRS + row`; its last one may be
    empty.
    """
    skip = tl.load(bounds)
    rows = tl.load(bounds + 1) - skip
    starts = row_start + skip
    first = tl.load(starts)
    low, high = tl.zeros_like(tile), tl.zeros_like(tile) + rows
    for _ in tl.static_range(HALVINGS):
        middle = (low + high) // 2
        begins = (tl.load(starts + middle) - first) * GROUP // PAIRS + middle
        is_before = (middle == low) | (begins <= tile)
        low = tl.where(is_before, middle, low)
        high = tl.where(is_before, high, middle)
    is_row = low < rows
    start = tl.load(starts + low)
    size = tl.load(starts + low + 1, mask=is_row, other=0) - start
    end = tl.load(context + skip + low, mask=is_row, other=0)
    before = (tile - (start - first) * GROUP // PAIRS - low) * PAIRS
    some = tl.where(is_row, tl.maximum(tl.minimum(size * GROUP - before, PAIRS), 0), 0)
    return skip + low, start * GROUP + before, some, (end - size) * GROUP + before
