"""Attention of rows with more than one position on tensor cores, in CUDA C++.

The kernel is `prefill_attention.cu`. This module cuts rows into tiles and launches it.
"""

# Kernels take pointers, strides and sizes one by one, and are written as one piece.
# ruff: noqa: PLR0913, PLR0917
# Parameters of kernels have no types.
# pyright: standard

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.runner.attention_backend import Queries
from paceline.runner.batch import Batch
from paceline.runner.cuda.kernels.nvrtc import (
    ALIGNED,
    Kernel,
    TensorMap,
    can_compile,
    multiply,
    source_of,
)
from paceline.runner.kv_store import KVStore
from paceline.runner.models.config import HeadShape

DIM, PAIRS, KEYS, CHUNK, HALF = 128, 128, 128, 16, 64  # as in the kernel
SLOTS = 6
SLOT_BYTES = KEYS * DIM * 2
MOST_TILES = 4096  # of a step


class TileList:
    """Tiles of queries, those with the most keys first. `lay_out` fills the list."""

    def __init__(self, batch: Batch, bounds: Tensor, rows: int, size: int) -> None:
        """Tiles of `size` positions, of at most `rows` rows from `bounds[0]` up to `bounds[1]`."""
        self._rows = batch.row_start, batch.context, bounds
        self.size, self.room = size, triton.next_power_of_2(batch.positions // size + rows)
        on: dict[str, Any] = {"dtype": torch.int32, "device": bounds.device}
        # First position in the batch, its position in the sequence, number of positions, row.
        self.tiles = torch.zeros((self.room, 4), **on)
        self.count = torch.zeros(1, **on)

    def lay_out(self) -> None:
        sizes = {"TILE": self.size, "ROOM": self.room}
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
        self._tiles = TileList(batch, bounds, rows, PAIRS // self._group)
        processors = torch.cuda.get_device_properties(kv.content.device).multi_processor_count
        self._programs = min(processors, self._tiles.room * kv.kv_heads)
        runs = kv.blocks * kv.groups.layers_per_block
        shape = (runs, kv.block_size, 2 * kv.kv_heads, DIM // HALF, HALF)
        halves = kv.content.view(shape).permute(0, 2, 3, 1, 4)  # cells of a half are adjacent
        self._map = TensorMap(halves, (1, 1, 1, CHUNK, HALF))

    @staticmethod
    def can(kv: KVStore, queries: Queries, positions: int) -> bool:
        """Whether the kernel supports such a store and so many positions of such queries."""
        group = queries.heads // kv.kv_heads
        is_shaped = set(kv.heads) == {HeadShape(kv.kv_heads, DIM)} and kv.block_size % CHUNK == 0
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
        arguments = (
            *(
                self._map,
                TensorMap(halves, (tiles.size, self._group, 1, HALF)),
                tiles.tiles,
                tiles.count,
            ),
            *(table, out, table.stride(0), kv.block_size, groups.layers_per_block, index),
            *(window or 0, scale),
        )
        _kernel(kv.kv_heads, self._group).launch(self._programs, arguments)


@cache
def _kernel(kv_heads: int, group: int) -> Kernel:
    return Kernel(source_for(kv_heads, group), "tiled", 384, ALIGNED + (SLOTS + 1) * SLOT_BYTES)


def source_for(kv_heads: int, group: int) -> str:
    sizes = {"KV_HEADS": kv_heads, "GROUP": group, "SLOTS": SLOTS}
    score = multiply("score", KEYS, is_held=True)
    weigh = multiply("weigh", DIM, is_held=True, is_transposed=True)
    return source_of("prefill_attention", sizes, score + weigh)


@triton.jit
def _weigh(
    row_start,
    context,
    bounds,
    work,
    count,
    TILE: tl.constexpr,
    KEYS: tl.constexpr,
    ROOM: tl.constexpr,
    HALVINGS: tl.constexpr,
):
    """Tiles of keys of the tile at each index, 0 if there is no tile; and the number of tiles."""
    index = tl.arange(0, ROOM)
    _, _, some, lowest = _tile_at(index, row_start, context, bounds, TILE, HALVINGS)
    tl.store(work + index, tl.where(some > 0, tl.cdiv(lowest + some, KEYS), 0))
    tl.store(count, tl.sum((some > 0).to(tl.int32), 0))


@triton.jit
def _list(
    row_start,
    context,
    bounds,
    order,
    tiles,
    TILE: tl.constexpr,
    ROOM: tl.constexpr,
    HALVINGS: tl.constexpr,
):
    """Write the tiles in this order."""
    index = tl.arange(0, ROOM)
    tile = tl.load(order + index).to(tl.int32)
    row, start, some, lowest = _tile_at(tile, row_start, context, bounds, TILE, HALVINGS)
    tl.store(tiles + index * 4, start)
    tl.store(tiles + index * 4 + 1, lowest)
    tl.store(tiles + index * 4 + 2, some)
    tl.store(tiles + index * 4 + 3, row)


@triton.jit
def _tile_at(tile, row_start, context, bounds, TILE: tl.constexpr, HALVINGS: tl.constexpr):
    """Row, first position in the batch, number of positions, and position in the sequence.

    The first tile of a row is at index `start // TILE + row`; its last one may be empty.
    """
    skip = tl.load(bounds)
    rows = tl.load(bounds + 1) - skip
    starts = row_start + skip
    first = tl.load(starts)
    low, high = tl.zeros_like(tile), tl.zeros_like(tile) + rows
    for _ in tl.static_range(HALVINGS):
        middle = (low + high) // 2
        begins = (tl.load(starts + middle) - first) // TILE + middle
        is_before = (middle == low) | (begins <= tile)
        low = tl.where(is_before, middle, low)
        high = tl.where(is_before, high, middle)
    is_row = low < rows
    start = tl.load(starts + low)
    size = tl.load(starts + low + 1, mask=is_row, other=0) - start
    end = tl.load(context + skip + low, mask=is_row, other=0)
    before = (tile - (start - first) // TILE - low) * TILE
    some = tl.where(is_row, tl.maximum(tl.minimum(size - before, TILE), 0), 0)
    return skip + low, start + before, some, end - size + before
